# Mask R-CNN with TransNeXt-Base on COCO, 36 epochs with multi-scale crops.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './mask_rcnn_tiny_3x_coco.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.6,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-base-224-1k/resolve/main/transnext_base_224_1k.pth'
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
