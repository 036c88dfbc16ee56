# Mask2Former with ConvNeXt-T on COCO, panoptic segmentation, 50 epochs: a baseline under the recipe of the other
# systems.
# Weights: ConvNeXt's ImageNet-1k release as mmpretrain converted it, fetched when training starts.
_base_ = ['../_base_/recipes/mask2former_coco_panoptic.py', '../_base_/backbones/convnext_tiny.py']
model = dict(backbone=_base_.pop('backbone'), panoptic_head=dict(in_channels=[96, 192, 384, 768]))
optim_wrapper = dict(paramwise_cfg=dict(flat_decay_mult=0.0))
