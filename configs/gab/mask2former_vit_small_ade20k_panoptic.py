# Mask2Former with GABViT-Small on ADE20K, panoptic segmentation, 160k iterations.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = ['../_base_/recipes/plain_mask2former_ade20k_panoptic.py', '../_base_/backbones/gabvit_small.py']
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=_base_.pop('backbone'),
    neck=dict(in_channels=[384] * 4),
)
optim_wrapper = dict(paramwise_cfg=dict(new_parameters=['gaussian'], custom_keys=dict(gaussian=dict(decay_mult=0.0))))
