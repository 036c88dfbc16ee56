# DINO of five scales with VARS-D in RVT-Ti on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './dino_rvt_tiny_vars_d_coco.py'
model = dict(
    neck=dict(sources=[0, 0, 0, 1, 1], scales=(4, 2, 1, 1, 0.5)),
    num_feature_levels=5,
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=5))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=5))),
)
