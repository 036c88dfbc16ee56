# VARS-D without L1 norm, three steps towards the least squares, in RVT-Ti on ImageNet-1k (VARS, fig. 6, lambda = 0;
# eq. 10).
# Weights: random.
_base_ = './rvt-tiny-ista-d_8xb128_in1k.py'
model = dict(backbone=dict(sparsity=0.0))
