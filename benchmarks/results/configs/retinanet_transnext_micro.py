# RetinaNet of mmdet with TransNeXt-Micro: the recipe of configs/transnext/retinanet_tiny_coco.py.
_base_ = '../../../configs/transnext/retinanet_tiny_coco.py'
model = dict(backbone=dict(arch='micro'), neck=dict(in_channels=[96, 192, 384]))
