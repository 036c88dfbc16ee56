# ConViT-Tiny on ImageNet-1k, 300 epochs of 224 x 224 (ConViT, table 1).
# Weights: random.
_base_ = ['../_base_/recipes/deit_in1k.py', '../_base_/backbones/convit_classifier.py']
model = dict(backbone=_base_.pop('backbone'), neck=None, head=dict(in_channels=192))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
