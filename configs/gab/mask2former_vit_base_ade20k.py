# Mask2Former with GABViT-Base on ADE20K, 160k iterations.
# Weights: timm's ImageNet-1k release of the host without Gaussians, fetched when training starts.
_base_ = './mask2former_vit_small_ade20k.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint=_base_.checkpoints.vit_base)),
    neck=dict(in_channels=[768] * 4),
)
