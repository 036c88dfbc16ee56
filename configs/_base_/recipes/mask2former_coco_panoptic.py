# Mask2Former for panoptic segmentation on COCO, 50 epochs; a config adds the backbone and the head's `in_channels`.
_base_ = [
    '../models/mask2former_panoptic.py',
    '../datasets/coco_panoptic.py',
    '../schedules/mask2former_50e.py',
    '../runtimes/mmdet_panoptic.py',
]
default_hooks = dict(
    checkpoint=dict(save_best='coco_panoptic/PQ', rule='greater'), visualization=dict(type='DetVisualizationHook')
)
log_processor = dict(by_epoch=False)
