# Mask2Former with TransNeXt-Micro on COCO, instance segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask2former_tiny_coco.py', '../_base_/backbones/transnext_micro.py']
model = dict(backbone=_base_.pop('backbone'), panoptic_head=dict(in_channels=[48, 96, 192, 384]))
