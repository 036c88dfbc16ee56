# Mask2Former with TransNeXt-Micro on COCO, instance segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './mask2former_tiny_coco.py'
model = dict(
    backbone=dict(
        arch='micro',
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-micro-224-1k/resolve/main/transnext_micro_224_1k.pth'
        ),
    ),
    panoptic_head=dict(in_channels=[48, 96, 192, 384]),
)
