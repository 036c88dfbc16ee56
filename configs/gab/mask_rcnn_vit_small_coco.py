# Mask R-CNN with GABViT-Small on COCO, 12 epochs.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = ['../_base_/plain/mask_rcnn.py', '../_base_/backbones/gab.py']
model = dict(
    data_preprocessor=_base_.vit_normalisation,
    backbone=dict(
        type='bioattn_mm.GABViT',
        arch='small',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.vit_small),
    ),
    neck=dict(in_channels=384),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        layer_decay_rate=_base_.layer_decay_rate,
        new_parameters=_base_.new_parameters,
        custom_keys=dict(gaussian=_base_.no_decay.gaussian),
    ),
)
