# DINO of four scales with VARS-D in DeiT-Ti on COCO, 12 epochs.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['./dino_deit_tiny_vars_s_coco.py', '../_base_/backbones/deit_tiny_vars_d.py']
model = dict(backbone=_base_.pop('backbone'))
