# Mask R-CNN small enough for a test that trains it until its AP is no zero.
_base_ = '../../configs/transnext/mask_rcnn_micro_coco.py'
channels = 32
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))),
    neck=dict(in_channels=[24, 48, 48, 48], out_channels=channels),
    rpn_head=dict(in_channels=channels, feat_channels=channels),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels),
        bbox_head=dict(in_channels=channels, fc_out_channels=64),
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(num_convs=1, in_channels=channels, conv_out_channels=channels),
    ),
    test_cfg=dict(rcnn=dict(score_thr=0.0, max_per_img=20)),
)
