# UperNet with TransNeXt-Tiny on ADE20K, 160k iterations (TransNeXt, table 5).
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/backbones/transnext.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k.py',
    '../_base_/runtimes/mmseg.py',
]
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch='tiny',
        drop_path_rate=0.4,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    decode_head=dict(in_channels=[72, 144, 288, 576]),
    auxiliary_head=dict(in_channels=288),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.no_decay))
