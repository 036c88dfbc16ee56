# Mask R-CNN with TransNeXt-Micro on COCO; the paper trains no micro variant, so this one takes tiny's settings.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask_rcnn_tiny_coco.py', '../_base_/backbones/transnext_micro.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=[48, 96, 192, 384]))
