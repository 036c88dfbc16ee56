# COCO 2017, boxes alone, with the multi-scale crops that DETR and its successors train on.
_base_ = './coco_instance.py'
load_boxes = dict(type='LoadAnnotations', with_bbox=True)
multi_scale_resize = dict(
    type='RandomChoiceResize', scales=[(short_side, 1333) for short_side in range(480, 801, 32)], keep_ratio=True
)

train_pipeline = [
    dict(type='bioattn_mm.LoadImageFromFile'),
    load_boxes,
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [multi_scale_resize],
            [
                # The long side is bounded so far out that the short side alone decides.
                dict(type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True),
                dict(
                    type='RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                multi_scale_resize,
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]
test_pipeline = [*_base_.test_pipeline[:2], load_boxes, *_base_.test_pipeline[3:]]

train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
