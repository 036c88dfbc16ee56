# ConViT-Tiny on ImageNet-1k, 300 epochs of 224 x 224 (ConViT, table 1).
# Weights: random.
_base_ = '../_base_/recipes/deit_in1k.py'
model = dict(
    backbone=dict(type='bioattn_mm.ConViT', arch='tiny', out_indices=(11,), out_type='cls_token', drop_path_rate=0.1),
    neck=None,
    head=dict(in_channels=192),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('backbone.pos_embed', 'backbone.cls_token')}
    )
)
