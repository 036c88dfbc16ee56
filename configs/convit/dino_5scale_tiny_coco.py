# DINO of five scales with ConViT-Tiny on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = './dino_tiny_coco.py'
model = dict(
    neck=dict(scales=(4, 2, 1, 0.5, 0.25)),
    num_feature_levels=5,
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=5))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=5))),
)
