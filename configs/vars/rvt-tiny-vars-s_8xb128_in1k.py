# VARS-S in RVT-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2).
# Five kernels a channel, as the release has; those of the table are three.
# Weights: random.
_base_ = ['../_base_/recipes/deit_in1k.py', '../_base_/backbones/vars_classifier.py']
# In the release block i of 12 has a drop path rate of 0.1 * i / 12, i from 0.
model = dict(
    backbone=dict(_base_.pop('backbone'), arch='rvt-tiny', drop_path_rate=0.1 * 11 / 12),
    neck=None,
    head=dict(in_channels=384),
)
