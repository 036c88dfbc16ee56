# DINO small enough for a test that trains it until its AP is no zero.
_base_ = '../../configs/transnext/dino_4scale_micro_coco.py'
channels = 64
feedforward_channels = 128
num_heads = 4
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))),
    neck=dict(in_channels=[48, 48, 48], out_channels=channels, norm_cfg=dict(num_groups=8)),
    encoder=dict(
        num_layers=2,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=channels, num_heads=num_heads),
            ffn_cfg=dict(embed_dims=channels, feedforward_channels=feedforward_channels),
        ),
    ),
    decoder=dict(
        num_layers=2,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=channels, num_heads=num_heads),
            cross_attn_cfg=dict(embed_dims=channels, num_heads=num_heads),
            ffn_cfg=dict(embed_dims=channels, feedforward_channels=feedforward_channels),
        ),
    ),
    positional_encoding=dict(num_feats=channels // 2),
    bbox_head=dict(embed_dims=channels),
)
