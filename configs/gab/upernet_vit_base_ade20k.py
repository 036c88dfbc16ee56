# UperNet with GABViT-Base on ADE20K, 160k iterations.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = ['./upernet_vit_small_ade20k.py', '../_base_/backbones/gabvit_base.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[768] * 4))
