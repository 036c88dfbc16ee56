# Mask R-CNN with GABViT-Base on COCO, 12 epochs.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = ['./mask_rcnn_vit_small_coco.py', '../_base_/backbones/gabvit_base.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=768))
