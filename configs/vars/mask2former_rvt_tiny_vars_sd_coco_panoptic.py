# Mask2Former with VARS-SD in RVT-Ti on COCO, panoptic segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['../_base_/recipes/plain_mask2former_coco_panoptic.py', '../_base_/backbones/vars.py']
model = dict(
    backbone=_base_.pop('backbone'),
    neck=dict(in_channels=[192, 384], stride=[16, 32], sources=[0, 0, 0, 1], scales=(4, 2, 1, 1)),
)
