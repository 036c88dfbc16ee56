# DINO of four scales with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/dino_coco.py', '../_base_/backbones/transnext.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), img_size=800, out_indices=(1, 2, 3), drop_path_rate=0.3),
    neck=dict(in_channels=[144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
# The whole backbone learns at a tenth of the rate. In the authors' configs, patch_embed4 and norm4 do not, by mistake
# as it seems.
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05), paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'), flat_decay_mult=0.0)
)
