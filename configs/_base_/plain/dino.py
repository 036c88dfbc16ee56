# DINO of four scales on the last map of a plain backbone; a config adds the backbone and the neck's `in_channels`.
_base_ = [
    '../models/dino.py',
    '../datasets/coco_detection.py',
    '../schedules/plain_backbone.py',
    '../schedules/dino_12e.py',
    '../runtimes/mmdet.py',
]
model = dict(
    backbone=dict(out_indices=(11,)),
    neck=dict(
        _delete_=True,
        type='bioattn_mm.SimpleFeaturePyramid',
        out_channels=256,
        scales=(2, 1, 0.5, 0.25),
    ),
)
# The whole backbone learns at a tenth of the rate, as in DINO with any backbone: no layer decay.
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05), paramwise_cfg=dict(custom_keys=_base_.plain_no_decay, flat_decay_mult=0.0)
)
