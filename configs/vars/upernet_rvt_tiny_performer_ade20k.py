# UperNet with Performer in RVT-Ti on ADE20K: a baseline.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['./upernet_rvt_tiny_vars_s_ade20k.py', '../_base_/backbones/rvt_tiny_performer.py']
model = dict(backbone=_base_.pop('backbone'))
