# Mask R-CNN with TransNeXt-Tiny on COCO, Swin's 36 epochs with multi-scale crops; the paper has 12 epochs alone.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/mask_rcnn_3x_coco.py'
# The model and the weight decays are those of mask_rcnn_tiny_coco.py.
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch='tiny',
        bias_mode='interpolate',
        img_size=800,
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
