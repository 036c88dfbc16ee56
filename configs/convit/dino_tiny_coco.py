# DINO of four scales with ConViT-Tiny on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/plain_dino_coco.py', '../_base_/backbones/convit_tiny.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=192))
