# Mask2Former with VARS-S in DeiT-Ti on ADE20K, 160k iterations.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['../_base_/recipes/plain_mask2former_ade20k.py', '../_base_/backbones/vars.py']
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        arch='deit-tiny',
        attention='vars_s',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vars_deit_tiny_vars_s.pth'),
    ),
    neck=dict(in_channels=[192, 192, 192, 192]),
)
