# Mask R-CNN with TransNeXt-Small on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask_rcnn_tiny_coco.py', '../_base_/backbones/transnext_small.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.5))
