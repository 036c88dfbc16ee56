# TransNeXt-Micro with attention to a 3 x 3 window alone in stages 1 to 3 on ImageNet-1k (ours, in no table of the
# paper).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=[
            *[dict(type='bioattn_mm.SlidingWindowAttention')] * 3,
            dict(type='bioattn_mm.LengthScaledAttention'),
        ]
    )
)
