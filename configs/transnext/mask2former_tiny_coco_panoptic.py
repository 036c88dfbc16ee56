# Mask2Former with TransNeXt-Tiny on COCO, panoptic segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/mask2former_coco_panoptic.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch='tiny',
        # As in the authors' Mask2Former: the position bias of the crop's size, resized to the actual one.
        bias_mode='interpolate',
        img_size=1024,
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-tiny-224-1k/resolve/main/transnext_tiny_224_1k.pth',
        ),
    ),
    panoptic_head=dict(in_channels=[72, 144, 288, 576]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('attn.scale', 'window_bias', 'position_bias', 'norm')},
        flat_decay_mult=0.0,
    )
)
