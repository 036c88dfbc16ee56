# What the rows of CIFAR-10 share: 30,000 images a run, each enlarged from 32 to 128 pixels, so that a plain backbone
# sees 8 x 8 patches, each of 4 x 4 original pixels. A config adds a backbone of about 0.4 M parameters. The data come
# by `--data`; a run is as long for every `--fraction` of them.
_base_ = [
    '../../../configs/_base_/models/classifier.py',
    '../../../configs/_base_/datasets/imagenet_224.py',
    '../../../configs/_base_/schedules/adamw_in1k_300e.py',
    '../../../configs/_base_/runtimes/mmpretrain.py',
]
# Mixed images need more of a training than these have.
model = dict(train_cfg=None)

size = 128
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=size, crop_ratio_range=(0.4, 1.0)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(size, size)), dict(type='PackInputs')]
# Images are read in the training's own process: they are small, and a run is to take one core.
train_dataloader = dict(
    batch_size=50,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(_delete_=True, type='InfiniteSampler', shuffle=True),
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(batch_size=100, num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

max_iters, warmup = 600, 30
optim_wrapper = dict(optimizer=dict(lr=2e-3), clip_grad=dict(max_norm=1.0, norm_type=2))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=warmup, end=max_iters),
]
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
default_hooks = dict(
    logger=dict(interval=50, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=1, save_best=None),
)
log_processor = dict(by_epoch=False)
# The rate above is for the batch above.
auto_scale_lr = dict(base_batch_size=50)
