# DINO of four scales with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
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
        arch='tiny',
        # As the authors train and test: the bias of this size, resized to the image's.
        bias_mode='interpolate',
        img_size=800,
        out_indices=(1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    neck=dict(in_channels=[144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
# All of the backbone learns at a tenth of the rate. In the release, patch_embed4 and norm4 do not: a slip, it seems.
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=_base_.no_decay, flat_decay_mult=0.0),
)
