# DINO of four scales with PerViT-Small on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['./dino_tiny_coco.py', '../_base_/backbones/pervit_small.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=464))
