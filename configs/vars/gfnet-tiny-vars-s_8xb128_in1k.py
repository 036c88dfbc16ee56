# VARS-S in GFNet-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2), with GFNet's recipe.
# Five kernels a channel, as the release has; the table has one.
# Weights: random.
_base_ = ['../_base_/recipes/gfnet_in1k.py', '../_base_/backbones/vars_classifier.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), arch='gfnet-tiny', drop_path_rate=0.1),
    neck=None,
    head=dict(in_channels=256),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.pos_embed': dict(decay_mult=0.0)}))
