# Mask2Former with VARS-SD in RVT-Ti on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './mask2former_rvt_tiny_vars_s_ade20k.py'
weights_source = _base_.released_weights_source
model = dict(
    backbone=dict(
        attention='vars_sd',
        num_steps=_base_.released_num_steps,
        init_cfg=dict(checkpoint=_base_.checkpoints.rvt_tiny_vars_sd),
    ),
)
