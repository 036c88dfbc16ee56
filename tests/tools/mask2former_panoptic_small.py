# Mask2Former for panoptic segmentation, small enough for a test that trains it until its PQ is no zero.
_base_ = '../../configs/transnext/mask2former_micro_coco_panoptic.py'
channels = 64
attention = dict(embed_dims=channels, num_heads=4)
ffn = dict(embed_dims=channels, feedforward_channels=128)
places = dict(num_feats=channels // 2)
decoder_layer = dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn)
encoder = dict(num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn))
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))),
    panoptic_head=dict(
        in_channels=[24, 48, 48, 48],
        feat_channels=channels,
        out_channels=channels,
        pixel_decoder=dict(norm_cfg=dict(num_groups=8), encoder=encoder, positional_encoding=places),
        positional_encoding=places,
        transformer_decoder=dict(num_layers=2, layer_cfg=decoder_layer),
    ),
    train_cfg=dict(num_points=1024),
    # So few steps leave every class uncertain.
    test_cfg=dict(object_mask_thr=0.1, iou_thr=0.3),
)
