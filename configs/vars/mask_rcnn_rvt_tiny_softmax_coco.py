# Mask R-CNN with self-attention in RVT-Ti on COCO: a baseline.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['./mask_rcnn_rvt_tiny_vars_s_coco.py', '../_base_/backbones/rvt_tiny_softmax.py']
model = dict(backbone=_base_.pop('backbone'))
