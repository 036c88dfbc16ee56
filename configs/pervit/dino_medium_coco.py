# DINO of four scales with PerViT-Medium on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './dino_tiny_coco.py'
model = dict(
    backbone=dict(arch='medium', drop_path_rate=0.2, init_cfg=dict(checkpoint='checkpoints/pervit_medium.pth')),
    neck=dict(in_channels=684),
)
