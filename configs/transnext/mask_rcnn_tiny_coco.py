# Mask R-CNN with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/mask_rcnn_coco.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch='tiny',
        # As the authors train and test: the position bias of this image size, resized to the actual one.
        bias_mode='interpolate',
        img_size=800,
        # The paper's 0.3 / 0.5 / 0.6 (tiny, small, base); the released code has UperNet's 0.4 / 0.6 / 0.7.
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-tiny-224-1k/resolve/main/transnext_tiny_224_1k.pth',
        ),
    ),
    neck=dict(in_channels=[72, 144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias', 'norm')}
    )
)
