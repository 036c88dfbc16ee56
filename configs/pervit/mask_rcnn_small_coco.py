# Mask R-CNN with PerViT-Small on COCO, 12 epochs.
_base_ = './mask_rcnn_tiny_coco.py'
model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint=_base_.checkpoints.small)),
    neck=dict(in_channels=464),
)
