# UperNet with ConViT-Base on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./upernet_tiny_ade20k.py', '../_base_/backbones/convit_base.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[768] * 4))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
