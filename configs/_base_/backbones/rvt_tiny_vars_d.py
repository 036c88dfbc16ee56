# VARS-D in RVT-Ti with the authors' ImageNet-1k release.
_base_ = './rvt_tiny_vars_s.py'
backbone = dict(
    attention='vars_d',
    # The released weights were trained with 5 steps; the paper says 3.
    num_steps=5,
    init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_vars_d.pth'),
)
