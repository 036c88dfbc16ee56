# VARS-S in DeiT-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 1), with DeiT's recipe.
# Weights: random.
_base_ = '../_base_/recipes/deit_in1k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        arch='deit-tiny',
        attention='vars_s',
        out_indices=(11,),
        out_type='avg_featmap',
        drop_path_rate=0.1,
    ),
    neck=None,
    head=dict(in_channels=192),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.pos_embed': dict(decay_mult=0.0)}))
