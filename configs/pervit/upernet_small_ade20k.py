# UperNet with PerViT-Small on ADE20K, 160k iterations.
_base_ = './upernet_tiny_ade20k.py'
model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint=_base_.checkpoints.small)),
    neck=dict(in_channels=[320, 368, 464, 464]),
)
