# Mask R-CNN with VARS-D in RVT-Ti on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['./mask_rcnn_rvt_tiny_vars_s_coco.py', '../_base_/backbones/rvt_tiny_vars_d.py']
model = dict(backbone=_base_.pop('backbone'))
