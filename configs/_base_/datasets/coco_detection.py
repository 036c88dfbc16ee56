# COCO 2017, boxes alone, with multi-scale crops.
_base_ = './coco_instance_multi_scale.py'
train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(type='LoadAnnotations', with_bbox=True),
    *_base_.train_pipeline[3:],
]

train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
