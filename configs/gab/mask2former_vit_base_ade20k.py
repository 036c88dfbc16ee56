# Mask2Former with GABViT-Base on ADE20K, 160k iterations.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = './mask2former_vit_small_ade20k.py'
model = dict(
    backbone=dict(
        arch='base',
        init_cfg=dict(
            checkpoint='https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights/vit_relpos_base_patch16_224-sw-49049aed.pth'
        ),
    ),
    neck=dict(in_channels=[768] * 4),
)
