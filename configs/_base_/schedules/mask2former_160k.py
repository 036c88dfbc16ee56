# Mask2Former's 160k iterations: no warm-up, gradients clipped, a slower backbone, embeddings without weight decay.
_base_ = './adamw_160k.py'
optim_wrapper = dict(
    constructor='bioattn_mm.CombinedRulesConstructor',
    optimizer=dict(lr=1e-4),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(
        custom_keys=dict(
            backbone=dict(lr_mult=0.1),
            query_embed=dict(decay_mult=0.0),
            query_feat=dict(decay_mult=0.0),
            level_embed=dict(decay_mult=0.0),
        ),
        norm_decay_mult=0.0,
    ),
)
# As mmseg and TransNeXt's authors validate.
train_cfg = dict(val_interval=5000)
default_hooks = dict(checkpoint=dict(interval=5000))
param_scheduler = [dict(type='PolyLR', eta_min=0.0, power=0.9, by_epoch=False, begin=0, end=160000)]
