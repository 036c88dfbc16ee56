# Mask2Former with TransNeXt-Tiny on COCO, instance segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = ['../_base_/recipes/mask2former_coco.py', '../_base_/backbones/transnext.py']
model = dict(
    backbone=dict(_base_.pop('backbone'), img_size=1024, drop_path_rate=0.3),
    panoptic_head=dict(in_channels=[72, 144, 288, 576]),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'), flat_decay_mult=0.0))
