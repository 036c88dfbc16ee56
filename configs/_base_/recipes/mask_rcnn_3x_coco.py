# Mask R-CNN on COCO, 36 epochs with multi-scale crops; a config adds the backbone and the neck's `in_channels`.
_base_ = [
    '../models/mask_rcnn.py',
    '../datasets/coco_instance_multi_scale.py',
    '../schedules/adamw_3x.py',
    '../runtimes/mmdet.py',
]
