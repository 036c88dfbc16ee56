# COCO 2017, boxes without masks, with DINO's multi-scale crops.
_base_ = './coco_instance_multi_scale.py'
train_pipeline = [
    _base_.train_pipeline[0],
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True),
    _base_.train_pipeline[2],
    dict(
        type='RandomChoice',
        transforms=[
            _base_.train_pipeline[3].transforms[0],
            [
                # No long side reaches 4200 pixels: the short side alone decides.
                dict(type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True),
                *_base_.train_pipeline[3].transforms[1][1:],
            ],
        ],
    ),
    *_base_.train_pipeline[4:],
]
train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
