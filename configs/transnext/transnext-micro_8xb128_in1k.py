# TransNeXt-Micro on ImageNet-1k, 300 epochs of 224 x 224 (TransNeXt, table 1).
# Weights: random.
_base_ = ['../_base_/recipes/deit_in1k.py', '../_base_/backbones/transnext_classifier.py']
model = dict(backbone=dict(_base_.pop('backbone'), arch='micro', drop_path_rate=0.15), head=dict(in_channels=384))
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0, norm_type=2), paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'))
)
