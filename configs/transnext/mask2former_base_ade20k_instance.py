# Mask2Former with TransNeXt-Base on ADE20K, instance segmentation, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['./mask2former_tiny_ade20k_instance.py', '../_base_/backbones/transnext_base.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), drop_path_rate=0.6), panoptic_head=dict(in_channels=[96, 192, 384, 768])
)
