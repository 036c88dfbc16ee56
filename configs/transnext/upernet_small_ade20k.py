# UperNet with TransNeXt-Small on ADE20K, 160k iterations (TransNeXt, table 14).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './upernet_tiny_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.6,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-small-224-1k/resolve/main/transnext_small_224_1k.pth'
        ),
    ),
)
