# VARS-D with the paper's 3 steps instead of the release's 5 in RVT-Ti on ImageNet-1k (VARS, fig. 6).
# Weights: random.
_base_ = '../rvt-tiny-vars-d_8xb128_in1k.py'
model = dict(backbone=dict(num_steps=3))
