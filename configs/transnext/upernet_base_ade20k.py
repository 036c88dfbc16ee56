# UperNet with TransNeXt-Base on ADE20K, 160k iterations (TransNeXt, table 14).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './upernet_tiny_ade20k.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.7,
        init_cfg=dict(
            checkpoint='https://huggingface.co/DaiShiResearch/transnext-base-224-1k/resolve/main/transnext_base_224_1k.pth'
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
