# VARS-S in RVT-Ti with 3 kernels for each channel, which has the parameters of the paper, on ImageNet-1k (VARS,
# table 2). The release has 5 kernels.
# Weights: random.
_base_ = '../rvt-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(num_kernels=3))
