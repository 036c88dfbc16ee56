# PerViT's peripheral attention in DeiT-Small, without class token, on ImageNet-1k (PerViT, table 2).
# Weights: random.
_base_ = './deit-tiny-peripheral_8xb128_in1k.py'
model = dict(
    backbone=dict(arch=dict(embed_dims=(384,) * 4, stem_channels=(48, 96, 192), num_heads=6)),
    head=dict(in_channels=384),
)
