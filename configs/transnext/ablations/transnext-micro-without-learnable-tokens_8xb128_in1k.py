# TransNeXt-Micro without learnable tokens (positional attention) and with query embedding on ImageNet-1k (ours, in no
# table of the paper).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=[
            *[dict(type='bioattn_mm.PixelFocusedAttention', scale=dict(type='bioattn_mm.ScaledCosineQuery'))] * 3,
            dict(type='bioattn_mm.LengthScaledAttention'),
        ]
    )
)
