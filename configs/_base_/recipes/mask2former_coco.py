# Mask2Former for instance segmentation on COCO, 50 epochs as mmdet counts them; a config adds the backbone and the
# head's `in_channels`.
_base_ = [
    '../models/mask2former_instance.py',
    '../datasets/coco_instance_jitter.py',
    '../schedules/mask2former_50e.py',
    '../runtimes/mmdet.py',
]
default_hooks = dict(checkpoint=dict(save_best='coco/segm_mAP'), visualization=dict(type='DetVisualizationHook'))
log_processor = dict(by_epoch=False)
