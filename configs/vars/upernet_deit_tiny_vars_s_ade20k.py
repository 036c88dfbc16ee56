# UperNet with VARS-S in DeiT-Ti on ADE20K, 160k iterations.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = [
    '../_base_/recipes/plain_upernet_ade20k.py',
    '../_base_/backbones/vars.py',
    '../_base_/backbones/deit_tiny_vars_s.py',
]
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[192, 192, 192, 192]))
