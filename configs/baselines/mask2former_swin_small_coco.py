# Mask2Former with Swin-S on COCO, instance segmentation, 50 epochs.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = ['./mask2former_swin_tiny_coco.py', '../_base_/backbones/swin_small_mmdet.py']
model = dict(backbone=_base_.pop('backbone'))
