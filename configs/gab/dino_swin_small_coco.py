# DINO of four scales with GABSwin-Small on COCO, 12 epochs.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = '../_base_/recipes/dino_coco.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABSwin',
        arch='small',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        new_parameters=['gaussian'],
        custom_keys={name: dict(decay_mult=0.0) for name in ('gaussian', 'relative_position_bias_table', 'norm')},
    )
)
