# Mask2Former with TransNeXt-Small on ADE20K, instance segmentation, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './mask2former_tiny_ade20k_instance.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.5,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth'
        ),
    ),
)
