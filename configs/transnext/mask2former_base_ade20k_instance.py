# Mask2Former with TransNeXt-Base on ADE20K, instance segmentation, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './mask2former_tiny_ade20k_instance.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.6,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-base-224-1k/resolve/main/transnext_base_224_1k.pth'
        ),
    ),
    panoptic_head=dict(in_channels=[96, 192, 384, 768]),
)
