# COCO 2017, boxes without masks, with DINO's multi-scale crops.
_base_ = './coco_instance.py'
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [
                dict(
                    type='RandomChoiceResize',
                    scales=[(short_side, 1333) for short_side in range(480, 801, 32)],
                    keep_ratio=True,
                ),
            ],
            [
                # No long side reaches 4200 pixels: the short side alone decides.
                dict(type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True),
                dict(type='RandomCrop', crop_type='absolute_range', crop_size=(384, 600), allow_negative_crop=True),
                dict(
                    type='RandomChoiceResize',
                    scales=[(short_side, 1333) for short_side in range(480, 801, 32)],
                    keep_ratio=True,
                ),
            ],
        ],
    ),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
