# COCO 2017, boxes and masks, with large-scale jittering: a crop of 1024 pixels from a tenth to twice the size.
_base_ = './coco_instance.py'
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(type='RandomResize', scale=(1024, 1024), ratio_range=(0.1, 2.0), resize_type='Resize', keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_type='absolute',
        crop_size=(1024, 1024),
        recompute_bbox=True,
        allow_negative_crop=True,
    ),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-5, 1e-5), by_mask=True),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackDetInputs'),
]
# All crops are of one size: images need not be grouped by their shape. Training counts iterations.
train_dataloader = dict(
    sampler=dict(type='InfiniteSampler'), batch_sampler=None, dataset=dict(pipeline=train_pipeline)
)
# mmdet merges boxes of several scales, but neither masks nor segments.
tta_model = None
tta_pipeline = None
