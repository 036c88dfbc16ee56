# DeiT: ConViT without GPSA.
_base_ = './cifar10_convit.py'
model = dict(backbone=dict(local_up_to_layer=0))
