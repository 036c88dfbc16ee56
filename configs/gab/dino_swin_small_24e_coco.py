# DINO of four scales with GABSwin-Small on COCO, 24 epochs.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = './dino_swin_small_coco.py'
train_cfg = dict(max_epochs=24)
param_scheduler = [dict(_base_.param_scheduler[0], milestones=[20], end=24)]
