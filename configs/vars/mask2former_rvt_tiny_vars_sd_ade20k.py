# Mask2Former with VARS-SD in RVT-Ti on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = ['./mask2former_rvt_tiny_vars_s_ade20k.py', '../_base_/backbones/rvt_tiny_vars_sd.py']
model = dict(backbone=_base_.pop('backbone'))
