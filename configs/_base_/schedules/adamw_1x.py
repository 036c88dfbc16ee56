# 12 epochs of AdamW (1x): warm-up of 500 iterations, a tenth of the rate after epochs 8 and 11.
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='bioattn_mm.MergedGroupsConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', milestones=[8, 11], gamma=0.1, by_epoch=True, begin=0, end=12),
]
train_cfg = dict(type='bioattn_mm.ResumableEpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='bioattn_mm.AtomicCheckpointHook', interval=1, max_keep_ckpts=3, save_best='coco/bbox_mAP'),
    visualization=dict(type='DetVisualizationHook'),
)
