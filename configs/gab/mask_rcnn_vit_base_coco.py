# Mask R-CNN with GABViT-Base on COCO, 12 epochs.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = './mask_rcnn_vit_small_coco.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint=_base_.checkpoints.vit_base)),
    neck=dict(in_channels=768),
)
