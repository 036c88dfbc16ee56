# Mask2Former with VARS-S in RVT-Ti on ADE20K, 160k iterations.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = [
    '../_base_/recipes/plain_mask2former_ade20k.py',
    '../_base_/backbones/vars.py',
    '../_base_/backbones/rvt_tiny_vars_s.py',
]
model = dict(
    backbone=_base_.pop('backbone'),
    neck=dict(in_channels=[192, 384], stride=[16, 32], sources=[0, 0, 0, 1], scales=(4, 2, 1, 1)),
)
