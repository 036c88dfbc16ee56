# Mask R-CNN with GABViT-Base on COCO, 12 epochs.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = './mask_rcnn_vit_small_coco.py'
model = dict(
    backbone=dict(
        arch='base',
        init_cfg=dict(
            checkpoint='https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights/vit_relpos_base_patch16_224-sw-49049aed.pth'
        ),
    ),
    neck=dict(in_channels=768),
)
