# ADE20K with Mask2Former's resize: short sides from half the crop to twice.
_base_ = './ade20k.py'
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations'),
    dict(
        type='RandomChoiceResize',
        scales=[512 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2048,
    ),
    dict(type='bioattn_mm.CountedRandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(type='bioattn_mm.TablePhotoMetricDistortion'),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
