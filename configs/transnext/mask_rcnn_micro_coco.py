# Mask R-CNN with TransNeXt-Micro on COCO; the paper trains no micro variant, so this one takes tiny's settings.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './mask_rcnn_tiny_coco.py'
model = dict(
    backbone=dict(
        arch='micro',
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-micro-224-1k/resolve/main/transnext_micro_224_1k.pth'
        ),
    ),
    neck=dict(in_channels=[48, 96, 192, 384]),
)
