# Mask2Former with Swin-S on ADE20K, 160k iterations.
# Weights: Swin's ImageNet-1k release as mmseg converted it, fetched when training starts.
_base_ = './mask2former_swin_tiny_ade20k.py'
model = dict(
    backbone=dict(
        depths=[2, 2, 18, 2],
        init_cfg=dict(
            checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/pretrain/swin/swin_small_patch4_window7_224_20220317-7ba6d6dd.pth'
        ),
    ),
)
