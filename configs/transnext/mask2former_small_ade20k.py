# Mask2Former with TransNeXt-Small on ADE20K, 160k iterations (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask2former_tiny_ade20k.py', '../_base_/backbones/transnext_small.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.5))
