# Mask2Former with TransNeXt-Tiny on ADE20K, panoptic segmentation, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/mask2former_ade20k_panoptic.py', '../_base_/backbones/transnext.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), img_size=640, drop_path_rate=0.3),
    panoptic_head=dict(in_channels=[72, 144, 288, 576]),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'), flat_decay_mult=0.0))
