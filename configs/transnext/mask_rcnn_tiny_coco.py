# Mask R-CNN with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
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
        arch='tiny',
        # As the authors train and test: the bias of this size, resized to the image's.
        bias_mode='interpolate',
        img_size=800,
        # The paper's 0.3 / 0.5 / 0.6, and both sources' for DINO; the release's code has UperNet's 0.4 / 0.6 / 0.7.
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    neck=dict(in_channels=[72, 144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.no_decay))
