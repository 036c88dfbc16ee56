# Mask2Former with TransNeXt-Tiny on ADE20K, 160k iterations (TransNeXt).
_base_ = [
    '../_base_/models/mask2former.py',
    '../_base_/backbones/transnext.py',
    '../_base_/datasets/ade20k_mask2former.py',
    '../_base_/schedules/mask2former_160k.py',
    '../_base_/runtimes/mmseg.py',
]
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    decode_head=dict(in_channels=[72, 144, 288, 576]),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.no_decay, flat_decay_mult=0.0))
