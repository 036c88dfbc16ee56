# DeiT-Base on ImageNet-1k: the baseline (ConViT, table 1, B).
# Weights: random.
_base_ = '../convit-base_8xb128_in1k.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=768, num_layers=12, num_heads=12), local_up_to_layer=0),
    head=dict(in_channels=768),
)
