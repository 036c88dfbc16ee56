# Mask R-CNN with TransNeXt-Base on COCO, 12 epochs (TransNeXt).
# Trained in float32; the authors train this one in float16: `tools/train.py --amp`.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask_rcnn_tiny_coco.py', '../_base_/backbones/transnext_base.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.6), neck=dict(in_channels=[96, 192, 384, 768]))
