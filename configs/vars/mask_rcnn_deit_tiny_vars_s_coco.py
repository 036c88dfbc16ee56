# Mask R-CNN with VARS-S in DeiT-Ti on COCO, 12 epochs.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = [
    '../_base_/recipes/plain_mask_rcnn_coco.py',
    '../_base_/backbones/vars.py',
    '../_base_/backbones/deit_tiny_vars_s.py',
]
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=192))
