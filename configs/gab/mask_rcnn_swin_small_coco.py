# Mask R-CNN with GABSwin-Small on COCO: Swin's settings, 36 epochs with multi-scale crops, but float32; Swin's mixed
# precision is `tools/train.py --amp`. GAB names no framework or schedule; its baseline has the AP of these settings.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = ['../_base_/recipes/mask_rcnn_3x_coco.py', '../_base_/backbones/gabswin_small.py']
model = dict(backbone=dict(_base_.pop('backbone'), drop_path_rate=0.2), neck=dict(in_channels=[96, 192, 384, 768]))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
