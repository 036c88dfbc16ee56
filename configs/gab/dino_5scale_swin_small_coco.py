# DINO of five scales with GABSwin-Small on COCO, 12 epochs.
# Weights: Swin's ImageNet-1k release, without Gaussians, fetched when training starts.
_base_ = './dino_swin_small_coco.py'
model = dict(
    backbone=dict(out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[96, 192, 384, 768], num_outs=5),
    num_feature_levels=5,
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=5))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=5))),
)
