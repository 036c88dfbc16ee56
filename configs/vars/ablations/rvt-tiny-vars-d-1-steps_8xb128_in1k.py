# VARS-D with 1 step of the recurrence in RVT-Ti on ImageNet-1k (VARS, fig. 6).
# Weights: random.
_base_ = '../rvt-tiny-vars-d_8xb128_in1k.py'
model = dict(backbone=dict(num_steps=1))
