# Mask R-CNN on COCO, 12 epochs; a config adds the backbone and the neck's `in_channels`.
_base_ = [
    '../models/mask_rcnn.py',
    '../datasets/coco_instance.py',
    '../schedules/adamw_1x.py',
    '../runtimes/mmdet.py',
]
