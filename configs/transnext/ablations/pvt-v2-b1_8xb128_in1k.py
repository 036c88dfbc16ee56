# PVTv2-B1 on ImageNet-1k: overlapping patch embedding and ConvFFN (TransNeXt, table 2, step 1).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), depths=(2, 2, 2, 2)),
        token_mixers=dict(type='bioattn_mm.SpatialReductionAttention'),
        channel_mixer=dict(type='bioattn_mm.DepthwiseMLP'),
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=512),
)
