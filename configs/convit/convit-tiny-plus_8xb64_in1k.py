# ConViT-Tiny+ on ImageNet-1k, 300 epochs of 224 x 224 (ConViT, table 1).
# Weights: random.
_base_ = './convit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='tiny-plus'), head=dict(in_channels=256))
# The plus variants take 512 images a step and a rate of 4e-4 for 512 images (ConViT, section 3).
train_dataloader = dict(batch_size=64)
auto_scale_lr = dict(base_batch_size=512)
optim_wrapper = dict(optimizer=dict(lr=4e-4))
param_scheduler = [
    # From 1e-6, as at other rates.
    dict(type='LinearLR', start_factor=2.5e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300),
]
