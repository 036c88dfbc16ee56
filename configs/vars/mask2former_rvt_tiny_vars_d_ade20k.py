# Mask2Former with VARS-D in RVT-Ti on ADE20K, 160k iterations.
_base_ = './mask2former_rvt_tiny_vars_s_ade20k.py'
model = dict(
    backbone=dict(attention='vars_d', init_cfg=dict(checkpoint=_base_.checkpoints.rvt_tiny_vars_d)),
)
