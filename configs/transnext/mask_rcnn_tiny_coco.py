# Mask R-CNN with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
_base_ = [
    '../_base_/models/mask_rcnn.py',
    '../_base_/backbones/transnext.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtimes/mmdet.py',
]
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        img_size=800,
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    neck=dict(in_channels=[72, 144, 288, 576]),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.no_decay))
