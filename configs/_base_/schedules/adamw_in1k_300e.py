# DeiT's 300 epochs of AdamW: 5 of linear warm-up, then a cosine. The rate is 5e-4 for 512 images a step, here 1024.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    constructor='bioattn_mm.CombinedRulesConstructor',
    # No decay of norms, biases and other vectors.
    paramwise_cfg=dict(flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300),
]
train_cfg = dict(type='bioattn_mm.ResumableEpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=100),
    checkpoint=dict(type='bioattn_mm.AtomicCheckpointHook', interval=1, max_keep_ckpts=3, save_best='accuracy/top1'),
    visualization=dict(type='bioattn_mm.ClsVisualizationHook'),
)
