# Mask2Former with PerViT-Medium on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './mask2former_tiny_ade20k.py'
model = dict(
    backbone=dict(arch='medium', drop_path_rate=0.2, init_cfg=dict(checkpoint='checkpoints/pervit_medium.pth')),
    neck=dict(in_channels=[468, 540, 684, 684]),
)
