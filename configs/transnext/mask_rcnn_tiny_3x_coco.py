# Mask R-CNN with TransNeXt-Tiny on COCO, Swin's 36 epochs with multi-scale crops; the paper has 12 epochs alone.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = [
    '../_base_/recipes/mask_rcnn_3x_coco.py',
    '../_base_/backbones/transnext.py',
    '../_base_/backbones/transnext_tiny.py',
]
# All but the recipe is as in mask_rcnn_tiny_coco.py.
model = dict(
    backbone=dict(_base_.pop('backbone'), img_size=800, drop_path_rate=0.3),
    neck=dict(in_channels=[72, 144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
