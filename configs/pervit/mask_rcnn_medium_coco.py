# Mask R-CNN with PerViT-Medium on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['./mask_rcnn_tiny_coco.py', '../_base_/backbones/pervit_medium.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=684))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
