# UperNet with TransNeXt-Tiny on ADE20K, 160k iterations (TransNeXt, table 14).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/upernet_ade20k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch='tiny',
        # As the authors train and test: the position bias of this image size, resized to the actual one.
        bias_mode='interpolate',
        img_size=512,
        drop_path_rate=0.4,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-tiny-224-1k/resolve/main/transnext_tiny_224_1k.pth',
        ),
    ),
    decode_head=dict(in_channels=[72, 144, 288, 576]),
    auxiliary_head=dict(in_channels=288),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias', 'norm')}
    )
)
