# Mask R-CNN with PerViT-Small on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['./mask_rcnn_tiny_coco.py', '../_base_/backbones/pervit_small.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=464))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
