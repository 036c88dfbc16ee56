# UperNet with GABViT-Small's host, without Gaussians, on ADE20K: the baseline.
# Weights: timm's ImageNet-1k release of this host, fetched when training starts.
_base_ = './upernet_vit_small_ade20k.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
