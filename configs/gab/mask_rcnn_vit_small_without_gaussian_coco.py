# Mask R-CNN with GABViT-Small's host, without Gaussians, on COCO: the baseline.
# Weights: timm's ImageNet-1k release of this host, fetched when training starts.
_base_ = './mask_rcnn_vit_small_coco.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
