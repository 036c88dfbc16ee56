# ADE20K's 100 classes with instances, boxes and masks, with Mask2Former's resize: short sides from half to twice the
# crop of 640 pixels. The annotations are those that tools/convert_ade20k.py writes.
_base_ = './coco_instance_jitter.py'
dataset_type = 'ADE20KInstanceDataset'
data_root = 'data/ade/ADEChallengeData2016'
train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(
        type='RandomChoiceResize',
        scales=[640 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2560,
    ),
    dict(_base_.train_pipeline[4], crop_size=(640, 640)),
    _base_.train_pipeline[5],  # leaves out what the crop has cut off
    dict(type='PhotoMetricDistortion'),
    _base_.train_pipeline[2],  # flips
    *_base_.train_pipeline[6:],
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(type='Resize', scale=(2560, 640), keep_ratio=True),
    _base_.test_pipeline[2],
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
