# Mask R-CNN with Swin-S on COCO, 12 epochs.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = ['./mask_rcnn_swin_tiny_coco.py', '../_base_/backbones/swin_small_mmdet.py']
model = dict(backbone=_base_.pop('backbone'))
