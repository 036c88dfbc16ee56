# VARS-D with the soft threshold instead of GELU in RVT-Ti on ImageNet-1k (VARS, eq. 12).
# Weights: random.
_base_ = '../rvt-tiny-vars-d_8xb128_in1k.py'
model = dict(backbone=dict(threshold='soft'))
