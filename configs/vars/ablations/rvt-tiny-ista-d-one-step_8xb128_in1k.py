# VARS-D with the first step alone, without L1 norm, which is attention, in RVT-Ti on ImageNet-1k (VARS, section 3.4).
# Weights: random.
_base_ = './rvt-tiny-ista-d_8xb128_in1k.py'
model = dict(backbone=dict(num_steps=0, sparsity=0.0))
