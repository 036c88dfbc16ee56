# DeiT-Small, without class token, on ImageNet-1k: the baseline of the sample efficiency, and row c of table 3
# (PerViT, table 4).
# Weights: random.
_base_ = './deit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(arch=dict(embed_dims=(384,) * 4, stem_channels=(48, 96, 192), num_heads=6)),
    head=dict(in_channels=384),
)
