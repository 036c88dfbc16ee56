# Mask2Former with GABViT-Small on ADE20K, 160k iterations.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = ['../_base_/plain/mask2former.py', '../_base_/backbones/gab.py']
model = dict(
    data_preprocessor=_base_.vit_normalisation,
    backbone=dict(
        type='bioattn_mm.GABViT',
        arch='small',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.vit_small),
    ),
    neck=dict(in_channels=[384] * 4),
)
optim_wrapper = dict(
    paramwise_cfg=dict(new_parameters=_base_.new_parameters, custom_keys=dict(gaussian=_base_.no_decay.gaussian))
)
