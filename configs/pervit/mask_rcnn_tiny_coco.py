# Mask R-CNN with PerViT-Tiny on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = [
    '../_base_/recipes/plain_mask_rcnn_coco.py',
    '../_base_/backbones/pervit.py',
    '../_base_/backbones/pervit_tiny.py',
]
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=280))
