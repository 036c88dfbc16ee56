# DINO's 12 epochs: no warm-up, a tenth of the rate after epoch 11, gradients clipped, a slower backbone.
# A step takes 8 GPUs x 2 images, as in mmdet. TransNeXt's authors accumulate two of 8 x 1 to save memory, where each
# half normalizes its losses by itself.
_base_ = './adamw_1x.py'
optim_wrapper = dict(
    constructor='bioattn_mm.CombinedRulesConstructor',
    optimizer=dict(weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))),
)
param_scheduler = [dict(type='MultiStepLR', milestones=[11], gamma=0.1, by_epoch=True, begin=0, end=12)]
