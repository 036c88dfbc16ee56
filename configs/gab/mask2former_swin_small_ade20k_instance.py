# Mask2Former with GABSwin-Small on ADE20K, instance segmentation, 160k iterations.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = ['../_base_/recipes/mask2former_ade20k_instance.py', '../_base_/backbones/gabswin_small.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), drop_path_rate=0.3), panoptic_head=dict(in_channels=[96, 192, 384, 768])
)
optim_wrapper = dict(paramwise_cfg=dict(new_parameters=['gaussian'], custom_keys=_base_.pop('custom_keys')))
