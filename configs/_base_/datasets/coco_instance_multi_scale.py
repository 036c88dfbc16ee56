# COCO 2017, boxes and masks, with the multi-scale crops of DETR, which Swin's Mask R-CNN trains on.
_base_ = './coco_instance.py'
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True, with_mask=True),
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
                dict(type='RandomChoiceResize', scales=[(400, 1333), (500, 1333), (600, 1333)], keep_ratio=True),
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
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
