# DINO of four scales with TransNeXt-Micro on COCO; no micro variant in the paper, so this one takes tiny's settings.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./dino_4scale_tiny_coco.py', '../_base_/backbones/transnext_micro.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[96, 192, 384]))
