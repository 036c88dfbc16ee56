# DINO of four scales with TransNeXt-Micro on COCO; no micro variant in the paper, so this one takes tiny's settings.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_4scale_tiny_coco.py'
model = dict(
    backbone=dict(
        arch='micro',
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-micro-224-1k/resolve/main/transnext_micro_224_1k.pth'
        ),
    ),
    neck=dict(in_channels=[96, 192, 384]),
)
