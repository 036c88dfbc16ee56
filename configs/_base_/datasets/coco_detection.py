# COCO 2017, boxes alone, with multi-scale crops.
_base_ = './coco_instance_multi_scale.py'
load_boxes = dict(type='bioattn_mm.LoadAnnotations', with_bbox=True)
train_pipeline = [
    *_base_.train_pipeline[:2],
    load_boxes,
    _base_.train_pipeline[3],
    dict(
        type='RandomChoice',
        transforms=[
            [_base_.multi_scale_resize],
            [
                # DINO bounds the long side so far out that the short side alone decides.
                dict(type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True),
                _base_.train_pipeline[4].transforms[1][1],
                _base_.multi_scale_resize,
            ],
        ],
    ),
    _base_.train_pipeline[5],
]
test_pipeline = [*_base_.test_pipeline[:2], load_boxes, *_base_.test_pipeline[3:]]

train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
