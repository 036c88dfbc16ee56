# UperNet with PerViT-Medium on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['./upernet_tiny_ade20k.py', '../_base_/backbones/pervit_medium.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[468, 540, 684, 684]))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
