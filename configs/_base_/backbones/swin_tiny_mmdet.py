# Swin-T in mmdet, which converts Swin's ImageNet-1k release as it loads it.
_base_ = './swin_tiny.py'
backbone = dict(
    convert_weights=True,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth',
    ),
)
