# Mask R-CNN with Swin-S on COCO, 12 epochs.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = './mask_rcnn_swin_tiny_coco.py'
model = dict(
    backbone=dict(
        depths=[2, 2, 18, 2],
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'
        ),
    ),
)
