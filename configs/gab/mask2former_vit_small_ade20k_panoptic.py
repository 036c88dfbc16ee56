# Mask2Former with GABViT-Small on ADE20K, panoptic segmentation, 160k iterations.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = '../_base_/recipes/plain_mask2former_ade20k_panoptic.py'
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=dict(
        type='bioattn_mm.GABViT',
        arch='small',
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights/vit_relpos_small_patch16_224-sw-ec2778b4.pth',
        ),
    ),
    neck=dict(in_channels=[384] * 4),
)
optim_wrapper = dict(paramwise_cfg=dict(new_parameters=['gaussian'], custom_keys=dict(gaussian=dict(decay_mult=0.0))))
