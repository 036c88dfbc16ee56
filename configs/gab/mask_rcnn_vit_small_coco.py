# Mask R-CNN with GABViT-Small on COCO, 12 epochs.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = ['../_base_/recipes/plain_mask_rcnn_coco.py', '../_base_/backbones/gabvit_small.py']
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=_base_.pop('backbone'),
    neck=dict(in_channels=384),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        layer_decay_rate=0.9, new_parameters=['gaussian'], custom_keys=dict(gaussian=dict(decay_mult=0.0))
    )
)
