# TransNeXt-Micro with multi-head self-attention to all tokens in stages 3 and 4 on ImageNet-1k (TransNeXt, table 9,
# A-A-M-M).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dims=(48, 96, 192, 384),
            num_heads=(2, 4, 8, 16),
            depths=(2, 2, 15, 2),
            sr_ratios=(8, 4, 1, 1),
        )
    )
)
