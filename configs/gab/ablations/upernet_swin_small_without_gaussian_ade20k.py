# UperNet with GABSwin-Small without Gaussians, the baseline, on ADE20K (GAB, eq. 3 with A = 0).
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = '../upernet_swin_small_ade20k.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
