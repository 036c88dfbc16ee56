# DINO of four scales with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
_base_ = [
    '../_base_/models/dino.py',
    '../_base_/backbones/transnext.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/dino_12e.py',
    '../_base_/runtimes/mmdet.py',
]
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        img_size=800,
        arch='tiny',
        out_indices=(1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    neck=dict(in_channels=[144, 288, 576]),
)
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=_base_.no_decay, flat_decay_mult=0.0),
)
