# DINO of four scales with GABSwin-Small on COCO, 12 epochs.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = [
    '../_base_/models/dino.py',
    '../_base_/backbones/gab.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/dino_12e.py',
    '../_base_/runtimes/mmdet.py',
]
model = dict(
    backbone=dict(
        type='bioattn_mm.GABSwin',
        arch='small',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.swin_small),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)
optim_wrapper = dict(paramwise_cfg=dict(new_parameters=_base_.new_parameters, custom_keys=_base_.no_decay))
