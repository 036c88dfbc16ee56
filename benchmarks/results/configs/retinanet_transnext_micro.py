# RetinaNet of mmdet with TransNeXt-Micro: the recipe of configs/transnext/retinanet_tiny_coco.py. GroupNorm in the
# neck and the head lets it learn from random weights.
_base_ = '../../../configs/transnext/retinanet_tiny_coco.py'
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    backbone=dict(arch='micro'),
    neck=dict(in_channels=[96, 192, 384], norm_cfg=norm_cfg),
    bbox_head=dict(norm_cfg=norm_cfg),
)
