# Mask2Former with Swin-T on ADE20K, 160k iterations: a baseline under the recipe of the other systems.
# Weights: Swin's ImageNet-1k release as mmseg converted it, fetched when training starts.
_base_ = '../_base_/recipes/mask2former_ade20k.py'
model = dict(
    backbone=dict(
        type='SwinTransformer',
        embed_dims=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/pretrain/swin/swin_tiny_patch4_window7_224_20220317-1cdeb081.pth',
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={name: dict(decay_mult=0.0) for name in ('relative_position_bias_table', 'norm')})
)
