# DINO of four scales with VARS-D in RVT-Ti on COCO, 12 epochs.
_base_ = './dino_rvt_tiny_vars_s_coco.py'
model = dict(
    backbone=dict(attention='vars_d', init_cfg=dict(checkpoint=_base_.checkpoints.rvt_tiny_vars_d)),
)
