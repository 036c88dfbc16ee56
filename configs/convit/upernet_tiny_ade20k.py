# UperNet with ConViT-Tiny on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/plain_upernet_ade20k.py', '../_base_/backbones/convit_tiny.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[192] * 4))
