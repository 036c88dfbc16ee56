# PVTv2 with the depth and width of TransNeXt-Micro, 48 channels a head, on ImageNet-1k (TransNeXt, table 2, step 2).
# Weights: random.
_base_ = './pvt-v2-b1_8xb128_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(embed_dims=(48, 96, 192, 384), num_heads=(1, 2, 4, 8), depths=(2, 2, 15, 2)),
        drop_path_rate=0.15,
    ),
    head=dict(in_channels=384),
)
