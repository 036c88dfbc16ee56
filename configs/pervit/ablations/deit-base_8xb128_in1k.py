# DeiT-Base, without class token, on ImageNet-1k, whose top-1 accuracy that row has (PerViT, table 3, row c).
# Weights: random.
_base_ = './deit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(arch=dict(embed_dims=(768,) * 4, stem_channels=(48, 96, 192), num_heads=12)),
    head=dict(in_channels=768),
)
