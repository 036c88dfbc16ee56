# UperNet with GABSwin-Small on ADE20K, 160k iterations: Swin's settings in mmseg. GAB names no framework or schedule.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/backbones/gab.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k.py',
    '../_base_/runtimes/mmseg.py',
]
model = dict(
    backbone=dict(
        type='bioattn_mm.GABSwin',
        arch='small',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.swin_small),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
    test_cfg=dict(_delete_=True, mode='whole'),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.01), paramwise_cfg=dict(custom_keys=_base_.no_decay))
