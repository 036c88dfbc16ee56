# DINO of four scales with ConViT-Small on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_tiny_coco.py'
model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='https://dl.fbaipublicfiles.com/convit/convit_small.pth')),
    neck=dict(in_channels=432),
)
