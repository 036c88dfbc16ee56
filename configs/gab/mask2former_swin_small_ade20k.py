# Mask2Former with GABSwin-Small on ADE20K, 160k iterations.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = [
    '../_base_/models/mask2former.py',
    '../_base_/backbones/gab.py',
    '../_base_/datasets/ade20k_mask2former.py',
    '../_base_/schedules/mask2former_160k.py',
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
)
optim_wrapper = dict(paramwise_cfg=dict(new_parameters=_base_.new_parameters, custom_keys=_base_.no_decay))
