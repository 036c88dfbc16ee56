# Mask2Former with PerViT-Small on ADE20K, instance segmentation, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = [
    '../_base_/recipes/plain_mask2former_ade20k_instance.py',
    '../_base_/backbones/pervit.py',
    '../_base_/backbones/pervit_small.py',
]
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[320, 368, 464, 464]))
