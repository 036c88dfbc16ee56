# Mask2Former with ConvNeXt-T on ADE20K, 160k iterations: a baseline under the recipe of the other systems.
# Weights: ConvNeXt's ImageNet-1k release as mmpretrain converted it, fetched when training starts.
_base_ = ['../_base_/recipes/mask2former_ade20k.py', '../_base_/backbones/convnext_tiny.py']
model = dict(backbone=_base_.pop('backbone'), decode_head=dict(in_channels=[96, 192, 384, 768]))
optim_wrapper = dict(paramwise_cfg=dict(flat_decay_mult=0.0))
