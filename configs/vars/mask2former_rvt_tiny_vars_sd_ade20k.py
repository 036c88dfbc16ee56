# Mask2Former with VARS-SD in RVT-Ti on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './mask2former_rvt_tiny_vars_s_ade20k.py'
model = dict(
    backbone=dict(
        attention='vars_sd',
        # The released weights were trained with 5 steps; the paper says 3.
        num_steps=5,
        init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_vars_sd.pth'),
    ),
)
