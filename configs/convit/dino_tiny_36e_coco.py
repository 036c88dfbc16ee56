# DINO of four scales with ConViT-Tiny on COCO, 36 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_tiny_coco.py'
train_cfg = dict(max_epochs=36)
param_scheduler = [dict(_base_.param_scheduler[0], milestones=[30], end=36)]
