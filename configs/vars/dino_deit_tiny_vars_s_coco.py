# DINO of four scales with VARS-S in DeiT-Ti on COCO, 12 epochs.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['../_base_/plain/dino.py', '../_base_/backbones/vars.py']
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        arch='deit-tiny',
        attention='vars_s',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.deit_tiny_vars_s),
    ),
    neck=dict(in_channels=192),
)
