# Mask R-CNN with PerViT-Medium on COCO, 12 epochs.
_base_ = './mask_rcnn_tiny_coco.py'
model = dict(
    backbone=dict(arch='medium', drop_path_rate=0.2, init_cfg=dict(checkpoint=_base_.checkpoints.medium)),
    neck=dict(in_channels=684),
)
