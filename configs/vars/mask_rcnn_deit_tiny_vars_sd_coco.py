# Mask R-CNN with VARS-SD in DeiT-Ti on COCO, 12 epochs.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['./mask_rcnn_deit_tiny_vars_s_coco.py', '../_base_/backbones/deit_tiny_vars_sd.py']
model = dict(backbone=_base_.pop('backbone'))
