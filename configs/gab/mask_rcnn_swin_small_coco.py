# Mask R-CNN with GABSwin-Small on COCO: Swin's settings, 36 epochs with multi-scale crops, but float32; Swin's mixed
# precision is `tools/train.py --amp`. GAB names no framework or schedule; its baseline has the AP of these settings.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = '../_base_/recipes/mask_rcnn_3x_coco.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABSwin',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('gaussian', 'relative_position_bias_table', 'norm')}
    )
)
