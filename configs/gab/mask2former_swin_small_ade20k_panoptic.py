# Mask2Former with GABSwin-Small on ADE20K, panoptic segmentation, 160k iterations.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = '../_base_/recipes/mask2former_ade20k_panoptic.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABSwin',
        arch='small',
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth',
        ),
    ),
    panoptic_head=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        new_parameters=['gaussian'],
        custom_keys={name: dict(decay_mult=0.0) for name in ('gaussian', 'relative_position_bias_table', 'norm')},
    )
)
