# Mask2Former with TransNeXt-Small on COCO, instance segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask2former_tiny_coco.py', '../_base_/backbones/transnext_small.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.5))
