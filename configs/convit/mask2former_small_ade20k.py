# Mask2Former with ConViT-Small on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask2former_tiny_ade20k.py', '../_base_/backbones/convit_small.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[432] * 4))
