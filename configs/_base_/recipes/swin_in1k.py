# Swin's recipe: a warm-up of 20 epochs, clipped gradients, no repeated augmentation.
_base_ = './in1k.py'
optim_wrapper = dict(clip_grad=dict(max_norm=5.0, norm_type=2))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=20, end=300),
]
