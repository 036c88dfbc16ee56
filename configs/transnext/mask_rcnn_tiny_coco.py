# Mask R-CNN with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/mask_rcnn_coco.py', '../_base_/backbones/transnext.py']
# Drop path as in the paper, 0.3 / 0.5 / 0.6 (tiny, small, base); the released code has UperNet's 0.4 / 0.6 / 0.7.
model = dict(
    backbone=dict(_base_.pop('backbone'), img_size=800, drop_path_rate=0.3),
    neck=dict(in_channels=[72, 144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
