# ConViT-Tiny on CIFAR-100 with the recipe of ImageNet-1k: the paper says 'without any tuning' (ConViT, section 3).
# Which of its models, for how many epochs and from which weights it has in its supplement alone; these are ours.
# Weights: random.
_base_ = '../../_base_/recipes/cifar100.py'
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
