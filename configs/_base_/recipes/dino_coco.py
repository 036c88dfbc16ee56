# DINO of four scales on COCO, 12 epochs; a config adds the backbone and the neck's `in_channels`.
_base_ = [
    '../models/dino.py',
    '../datasets/coco_detection.py',
    '../schedules/dino_12e.py',
    '../runtimes/mmdet.py',
]
