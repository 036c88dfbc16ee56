# DINO of four scales with VARS-D in RVT-Ti on COCO, 24 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './dino_rvt_tiny_vars_d_coco.py'
train_cfg = dict(max_epochs=24)
param_scheduler = [dict(_base_.param_scheduler[0], milestones=[20], end=24)]
