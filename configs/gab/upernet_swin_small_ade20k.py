# UperNet with GABSwin-Small on ADE20K, 160k iterations: Swin's settings in mmseg. GAB names no framework or schedule.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = ['../_base_/recipes/upernet_ade20k.py', '../_base_/backbones/gabswin_small.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
    test_cfg=dict(_delete_=True, mode='whole'),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.01), paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
