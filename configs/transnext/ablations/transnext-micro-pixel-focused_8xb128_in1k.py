# TransNeXt-Micro without learnable tokens and query embedding: pixel-focused attention on ImageNet-1k (TransNeXt,
# table 2, step 6).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=[
            *[dict(type='bioattn_mm.PixelFocusedAttention')] * 3,
            dict(type='bioattn_mm.LengthScaledAttention', scale=dict(type='bioattn_mm.CosineQueryWithoutEmbedding')),
        ]
    )
)
