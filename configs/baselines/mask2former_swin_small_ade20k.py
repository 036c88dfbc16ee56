# Mask2Former with Swin-S on ADE20K, 160k iterations.
# Weights: Swin's ImageNet-1k release as mmseg converted it, fetched when training starts.
_base_ = ['./mask2former_swin_tiny_ade20k.py', '../_base_/backbones/swin_small_mmseg.py']
model = dict(backbone=_base_.pop('backbone'))
