# DeiT-Small on ImageNet-1k: the baseline (ConViT, table 1, S, and table 2).
# Weights: random.
_base_ = '../convit-small_8xb128_in1k.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=384, num_layers=12, num_heads=6), local_up_to_layer=0),
    head=dict(in_channels=384),
)
