# TransNeXt-Micro with aggregated attention in all four stages on ImageNet-1k, 300 epochs of 256 x 256 (TransNeXt,
# table 9).
# Weights: random.
_base_ = ['../_base_/recipes/deit_in1k_256px.py', '../_base_/backbones/transnext_classifier.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), arch='micro-aaaa', drop_path_rate=0.15), head=dict(in_channels=384)
)
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0, norm_type=2), paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'))
)
