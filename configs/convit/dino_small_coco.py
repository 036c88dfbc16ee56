# DINO of four scales with ConViT-Small on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./dino_tiny_coco.py', '../_base_/backbones/convit_small.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=432))
