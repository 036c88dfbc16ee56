# Mask R-CNN on the last map of a plain backbone (ViTDet); a config adds the backbone and the neck's `in_channels`.
_base_ = [
    '../models/mask_rcnn.py',
    '../datasets/coco_instance.py',
    '../schedules/plain_backbone.py',
    '../schedules/adamw_1x.py',
    '../runtimes/mmdet.py',
]
model = dict(
    backbone=dict(out_indices=(11,)),
    neck=dict(
        _delete_=True,
        type='bioattn_mm.SimpleFeaturePyramid',
        out_channels=256,
        scales=(4, 2, 1, 0.5, 0.25),
        head_strides=_base_.model.rpn_head.anchor_generator.strides,
    ),
)
optim_wrapper = dict(
    constructor='bioattn_mm.CombinedRulesConstructor',
    paramwise_cfg=dict(custom_keys=_base_.plain_no_decay, flat_decay_mult=0.0),
)
