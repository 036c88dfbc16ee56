# Swin-S in mmseg.
_base_ = './swin_tiny_mmseg.py'
backbone = dict(
    depths=[2, 2, 18, 2],
    init_cfg=dict(
        checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/pretrain/swin/swin_small_patch4_window7_224_20220317-7ba6d6dd.pth'
    ),
)
