# Mask R-CNN with Swin-T on COCO, 12 epochs: a baseline under the recipe of the other systems.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/mask_rcnn_coco.py'
model = dict(
    backbone=dict(
        type='SwinTransformer',
        embed_dims=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        drop_path_rate=0.2,
        convert_weights=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={name: dict(decay_mult=0.0) for name in ('relative_position_bias_table', 'norm')})
)
