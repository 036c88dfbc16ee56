# Mask R-CNN with ConViT-Base on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask_rcnn_tiny_coco.py', '../_base_/backbones/convit_base.py']
model = dict(backbone=_base_.pop('backbone'), neck=dict(in_channels=768))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
