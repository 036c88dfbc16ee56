# ConViT-Small+ without GPSA: DeiT-Small+ on ImageNet-1k (ConViT, table 3, row e, and table 1, S+).
# Weights: random.
_base_ = '../convit-small-plus_8xb64_in1k.py'
model = dict(backbone=dict(local_up_to_layer=0))
