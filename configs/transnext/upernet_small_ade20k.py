# UperNet with TransNeXt-Small on ADE20K, 160k iterations (TransNeXt, table 14).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./upernet_tiny_ade20k.py', '../_base_/backbones/transnext_small.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.6))
