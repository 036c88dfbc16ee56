# 36 epochs of AdamW (3x): warm-up of 1000 iterations, a tenth of the rate after epochs 27 and 33.
_base_ = './adamw_1x.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', milestones=[27, 33], gamma=0.1, by_epoch=True, begin=0, end=36),
]
train_cfg = dict(max_epochs=36)
