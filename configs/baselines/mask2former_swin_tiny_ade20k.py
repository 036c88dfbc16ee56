# Mask2Former with Swin-T on ADE20K, 160k iterations: a baseline under the recipe of the other systems.
# Weights: Swin's ImageNet-1k release as mmseg converted it, fetched when training starts.
_base_ = [
    '../_base_/recipes/mask2former_ade20k.py',
    '../_base_/backbones/swin.py',
    '../_base_/backbones/swin_tiny_mmseg.py',
]
model = dict(
    backbone=dict(_base_.pop('backbone'), drop_path_rate=0.3), decode_head=dict(in_channels=[96, 192, 384, 768])
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
