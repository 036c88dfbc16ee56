# COCO 2017, 80 classes, boxes and masks. Download the images and annotations from https://cocodataset.org.
dataset_type = 'CocoDataset'
data_root = 'data/coco'

# Those of bioattn_mm give the samples of the upstream transforms of the same name in less time, and name files that
# cannot be used. The test pipeline has the upstream names, which the inference APIs look for.
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackDetInputs'),
]
# No annotations are loaded: the metric reads the annotation file, and mmdet's inference API has only the image.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]

# Multi-scale and flip testing: `tools/test.py --tta`.
tta_model = dict(type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100))
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale=scale, keep_ratio=True) for scale in ((1333, 600), (1333, 800), (2000, 1000))],
            [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0.0, 1.0)],
            [dict(type='PackDetInputs')],
        ],
    ),
]

# 16 images a step, as the papers train: 8 GPUs x 2.
train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', ann_file=f'{data_root}/annotations/instances_val2017.json', metric=['bbox', 'segm']
)
test_evaluator = val_evaluator
auto_scale_lr = dict(enable=False, base_batch_size=16)
