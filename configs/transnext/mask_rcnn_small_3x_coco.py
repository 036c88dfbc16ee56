# Mask R-CNN with TransNeXt-Small on COCO, 36 epochs with multi-scale crops.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './mask_rcnn_tiny_3x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.5,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth'
        ),
    ),
)
