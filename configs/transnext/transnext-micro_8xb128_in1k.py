# TransNeXt-Micro on ImageNet-1k, 300 epochs of 224 x 224 (TransNeXt, table 1).
# Weights: random.
_base_ = '../_base_/recipes/deit_in1k.py'
model = dict(
    backbone=dict(type='bioattn_mm.TransNeXt', arch='micro', out_indices=(3,), drop_path_rate=0.15),
    head=dict(in_channels=384),
)
# All other parameters without weight decay are vectors.
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0, norm_type=2),
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias')}
    ),
)
