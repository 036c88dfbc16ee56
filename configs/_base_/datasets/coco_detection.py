# COCO 2017, boxes alone, with DINO's multi-scale crops.
_base_ = './coco_instance_multi_scale.py'
train_pipeline = [
    dict(type='bioattn_mm.SeedSample'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [_base_.multi_scale_resize],
            [
                # DINO bounds the long side so far out that the short side alone decides.
                dict(type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True),
                _base_.multi_scale_crop,
                _base_.multi_scale_resize,
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]

train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
