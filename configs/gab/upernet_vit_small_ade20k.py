# UperNet with GABViT-Small on ADE20K, 160k iterations.
_base_ = ['../_base_/columnar/upernet.py', '../_base_/backbones/gab.py']
model = dict(
    backbone=dict(
        type='bioattn_mm.GABViT',
        arch='small',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.vit_small),
    ),
    neck=dict(in_channels=[384] * 4),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(gaussian=_base_.no_decay.gaussian)))
