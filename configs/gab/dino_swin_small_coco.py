# DINO of four scales with GABSwin-Small on COCO, 12 epochs.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = ['../_base_/recipes/dino_coco.py', '../_base_/backbones/gabswin_small.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), out_indices=(1, 2, 3), drop_path_rate=0.2),
    neck=dict(in_channels=[192, 384, 768]),
)
optim_wrapper = dict(paramwise_cfg=dict(new_parameters=['gaussian'], custom_keys=_base_.pop('custom_keys')))
