# Mask R-CNN with VARS-SD in RVT-Ti on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['../_base_/recipes/plain_mask_rcnn_coco.py', '../_base_/backbones/vars.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), out_indices=(9, 11)),
    neck=dict(in_channels=[192, 384], stride=[16, 32], sources=[0, 0, 0, 1, 1], scales=(4, 2, 1, 1, 0.5)),
)
