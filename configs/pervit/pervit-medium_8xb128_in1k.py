# PerViT-Medium on ImageNet-1k, 300 epochs of 224 x 224, of them 20 of warm-up (PerViT, table 6).
# Weights: random.
_base_ = './pervit-small_8xb128_in1k.py'
model = dict(backbone=dict(arch='medium', drop_path_rate=0.2), head=dict(in_channels=684))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=20, end=300),
]
