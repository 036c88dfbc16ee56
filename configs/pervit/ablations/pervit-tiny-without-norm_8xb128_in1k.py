# PerViT-Tiny with a peripheral projection without norms on ImageNet-1k (PerViT, table 5).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=dict(position=dict(type='bioattn_mm.UnnormalizedPosition')),
        # The peripheral initial values are those of a norm.
        position_init='random',
    )
)
