# DINO of four scales with VARS-SD in RVT-Ti on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './dino_rvt_tiny_vars_s_coco.py'
weights_source = _base_.released_weights_source
model = dict(
    backbone=dict(
        attention='vars_sd',
        num_steps=_base_.released_num_steps,
        init_cfg=dict(checkpoint=_base_.checkpoints.rvt_tiny_vars_sd),
    ),
)
