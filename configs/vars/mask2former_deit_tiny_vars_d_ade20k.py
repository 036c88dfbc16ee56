# Mask2Former with VARS-D in DeiT-Ti on ADE20K, 160k iterations.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = ['./mask2former_deit_tiny_vars_s_ade20k.py', '../_base_/backbones/deit_tiny_vars_d.py']
model = dict(backbone=_base_.pop('backbone'))
