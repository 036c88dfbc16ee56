# UperNet with VARS-SD in RVT-Ti on ADE20K, 160k iterations.
_base_ = './upernet_rvt_tiny_vars_s_ade20k.py'
model = dict(
    backbone=dict(attention='vars_sd', init_cfg=dict(checkpoint=_base_.checkpoints.rvt_tiny_vars_sd)),
)
