# DINO of five scales with TransNeXt-Tiny on COCO, 12 epochs (TransNeXt).
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_4scale_tiny_coco.py'
model = dict(
    backbone=dict(out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[72, 144, 288, 576], num_outs=5),
    num_feature_levels=5,
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=5))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=5))),
)
