# UperNet with GABSwin-Small's host, without Gaussians, on ADE20K: the baseline.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = './upernet_swin_small_ade20k.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
