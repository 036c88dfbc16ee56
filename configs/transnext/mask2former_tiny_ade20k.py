# Mask2Former with TransNeXt-Tiny on ADE20K, 160k iterations (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
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
        # As the authors train and test: the bias of this size, resized to the image's.
        bias_mode='interpolate',
        img_size=512,
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=_base_.checkpoints.tiny),
    ),
    decode_head=dict(in_channels=[72, 144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
# All of the backbone learns at a tenth of the rate. In the release, patch_embed4 and norm4 do not: a slip, it seems.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.no_decay, flat_decay_mult=0.0))
