# ADE20K, 150 classes, crops of 512 x 512. Download ADEChallengeData2016 from the MIT Scene Parsing Benchmark.
dataset_type = 'ADE20KDataset'
data_root = 'data/ade/ADEChallengeData2016'

# Those of bioattn_mm give the samples of the upstream transforms of the same name in less time, and name files that
# cannot be used. The test pipeline has the upstream names, which the inference APIs look for.
train_pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='bioattn_mm.CheckedLoadAnnotations'),
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='bioattn_mm.CountedRandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='bioattn_mm.InOrderRandomFlip', prob=0.5),
    dict(type='bioattn_mm.TablePhotoMetricDistortion'),
    dict(type='bioattn_mm.ChannelsFirst'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    # After the resize, which must not change the annotations: predictions are resized to their size and compared.
    # mmseg's inference API, which has no annotations, removes the step of this name.
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
# Multi-scale and flip testing of whole images: `tools/test.py --tta`.
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale=(int(2048 * ratio), int(512 * ratio)), keep_ratio=True)
                for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
            ],
            [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0.0, 1.0)],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]

# 16 images a step, as the papers train: 8 GPUs x 2.
train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
auto_scale_lr = dict(enable=False, base_batch_size=16)
