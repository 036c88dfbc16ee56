# DINO of four scales with TransNeXt-Tiny on COCO, 24 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_4scale_tiny_coco.py'
train_cfg = dict(max_epochs=24)
param_scheduler = [dict(_base_.param_scheduler[0], milestones=[20], end=24)]
