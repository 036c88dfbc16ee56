# DINO of five scales with TransNeXt-Base on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./dino_5scale_tiny_coco.py', '../_base_/backbones/transnext_base.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.6), neck=dict(in_channels=[96, 192, 384, 768]))
