# ConViT-Base on ImageNet-1k, 300 epochs of 224 x 224 (ConViT, table 1).
# Weights: random.
_base_ = './convit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='base'), head=dict(in_channels=768))
