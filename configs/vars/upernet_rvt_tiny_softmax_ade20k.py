# UperNet with self-attention in RVT-Ti on ADE20K: a baseline.
# Weights: nobody publishes any; pre-train the backbone on ImageNet first.
_base_ = './upernet_rvt_tiny_vars_s_ade20k.py'
model = dict(
    backbone=dict(
        attention='softmax',
        init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_softmax.pth'),
    ),
)
