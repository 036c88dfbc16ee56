# VARS-D in RVT-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2).
# Weights: random.
_base_ = './rvt-tiny-vars-s_8xb128_in1k.py'
model = dict(
    backbone=dict(
        attention='vars_d',
        # The released weights were trained with 5 steps; the paper says 3.
        num_steps=5,
    )
)
