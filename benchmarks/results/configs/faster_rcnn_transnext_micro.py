# Faster R-CNN of mmdet with TransNeXt-Micro, as in docs/any_model.md, with AdamW: mmdet's SGD is for ResNet.
# GroupNorm in the neck and the head, which has convolutions for it, lets it learn from random weights.
_base_ = [
    'mmdet::_base_/models/faster-rcnn_r50_fpn.py',
    '../../../configs/_base_/datasets/coco_instance.py',
    '../../../configs/_base_/schedules/adamw_1x.py',
    '../../../configs/_base_/runtimes/mmdet.py',
]
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    backbone=dict(_delete_=True, type='bioattn_mm.TransNeXt', arch='micro'),
    neck=dict(in_channels=[48, 96, 192, 384], norm_cfg=norm_cfg),
    roi_head=dict(bbox_head=dict(type='Shared4Conv1FCBBoxHead', norm_cfg=norm_cfg)),
)
train_pipeline = [
    _base_.train_pipeline[0],
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True),
    *_base_.train_pipeline[2:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
