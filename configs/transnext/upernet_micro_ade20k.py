# UperNet with TransNeXt-Micro on ADE20K; the paper trains no micro variant, so this one takes tiny's settings.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./upernet_tiny_ade20k.py', '../_base_/backbones/transnext_micro.py']
model = dict(
    backbone=_base_.pop('backbone'),
    decode_head=dict(in_channels=[48, 96, 192, 384]),
    auxiliary_head=dict(in_channels=192),
)
