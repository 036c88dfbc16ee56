# TransNeXt-Tiny with the learnable tokens as the bias of the window on ImageNet-1k (TransNeXt, table 6, row 3).
# Weights: random.
_base_ = '../transnext-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=[
            *[dict(type='bioattn_mm.DynamicBiasAttention')] * 3,
            dict(type='bioattn_mm.LengthScaledAttention'),
        ]
    )
)
