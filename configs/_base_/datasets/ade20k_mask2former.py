# ADE20K with Mask2Former's resize: short sides from half the crop to twice.
_base_ = './ade20k.py'
train_pipeline = [
    *_base_.train_pipeline[:3],
    dict(
        type='RandomChoiceResize',
        scales=[512 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2048,
    ),
    *_base_.train_pipeline[4:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
