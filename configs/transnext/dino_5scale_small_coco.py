# DINO of five scales with TransNeXt-Small on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_5scale_tiny_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.5,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth'
        ),
    ),
)
