# ADE20K's panoptic segmentation: 100 classes with instances and 50 without. The annotations are those that
# tools/convert_ade20k.py writes.
_base_ = './ade20k_instance.py'
dataset_type = 'ADE20KPanopticDataset'
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadPanopticAnnotations', with_bbox=True, with_mask=True, with_seg=True),
    dict(
        type='RandomChoiceResize',
        scales=[640 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2560,
    ),
    dict(
        type='RandomCrop', crop_type='absolute', crop_size=(640, 640), recompute_bbox=True, allow_negative_crop=True
    ),
    dict(type='PhotoMetricDistortion'),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        ann_file='ade20k_panoptic_train.json',
        data_prefix=dict(seg='ade20k_panoptic_train/'),
        # An image without instances has stuff to learn.
        filter_cfg=dict(filter_empty_gt=False),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(type=dataset_type, ann_file='ade20k_panoptic_val.json', data_prefix=dict(seg='ade20k_panoptic_val/'))
)
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='bioattn_mm.CocoPanopticMetric',
    ann_file=f'{_base_.data_root}/ade20k_panoptic_val.json',
    seg_prefix=f'{_base_.data_root}/ade20k_panoptic_val',
)
test_evaluator = val_evaluator
