# Mask R-CNN with GABSwin-Small's host, without Gaussians, on COCO: the baseline.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = './mask_rcnn_swin_small_coco.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
