# ADE20K's 100 classes with instances, boxes and masks, with Mask2Former's resize: short sides from half to twice the
# crop of 640 pixels. The annotations are those that tools/convert_ade20k.py writes.
_base_ = './coco_instance_jitter.py'
dataset_type = 'ADE20KInstanceDataset'
data_root = 'data/ade/ADEChallengeData2016'
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='RandomChoiceResize',
        scales=[640 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2560,
    ),
    dict(
        type='RandomCrop', crop_type='absolute', crop_size=(640, 640), recompute_bbox=True, allow_negative_crop=True
    ),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-5, 1e-5), by_mask=True),
    dict(type='PhotoMetricDistortion'),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2560, 640), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file='ade20k_instance_train.json',
        data_prefix=dict(img='images/training/'),
        filter_cfg=dict(min_size=0),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file='ade20k_instance_val.json',
        data_prefix=dict(img='images/validation/'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/ade20k_instance_val.json')
test_evaluator = val_evaluator
