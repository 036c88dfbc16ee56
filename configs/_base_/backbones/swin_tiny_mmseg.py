# Swin-T in mmseg, with Swin's ImageNet-1k release as mmseg converted it.
_base_ = './swin_tiny.py'
backbone = dict(
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/pretrain/swin/swin_tiny_patch4_window7_224_20220317-1cdeb081.pth',
    )
)
