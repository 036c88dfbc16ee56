# Mask2Former with PerViT-Tiny on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = [
    '../_base_/recipes/plain_mask2former_ade20k.py',
    '../_base_/backbones/pervit.py',
    '../_base_/backbones/pervit_tiny.py',
]
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[192, 224, 280, 280]))
