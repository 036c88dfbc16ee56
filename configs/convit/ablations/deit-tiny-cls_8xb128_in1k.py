# DeiT-Tiny on ImageNet-1k: the baseline (ConViT, table 1, Ti).
# Weights: random.
_base_ = '../convit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=192, num_layers=12, num_heads=3), local_up_to_layer=0),
    head=dict(in_channels=192),
)
