# UperNet with TransNeXt-Tiny on ADE20K, 160k iterations (TransNeXt, table 14).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/upernet_ade20k.py', '../_base_/backbones/transnext.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), img_size=512, drop_path_rate=0.4),
    decode_head=dict(in_channels=[72, 144, 288, 576]),
    auxiliary_head=dict(in_channels=288),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
