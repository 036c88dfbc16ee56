# Self-attention in RVT-Ti on ImageNet-1k, 300 epochs of 224 x 224: a baseline, the vanilla RVT (VARS, table 2).
# Weights: random.
_base_ = './rvt-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='softmax'))
