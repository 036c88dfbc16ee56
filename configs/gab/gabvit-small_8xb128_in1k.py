# GABViT-Small on ImageNet-1k, 300 epochs of 224 x 224: the recipe of its host; GAB's text has none.
# Weights: random.
_base_ = '../_base_/recipes/vit_relpos_in1k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABViT', arch='small', out_indices=(11,), out_type='avg_featmap', drop_path_rate=0.1
    ),
    neck=None,
    head=dict(in_channels=384),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(gaussian=dict(decay_mult=0.0))))
