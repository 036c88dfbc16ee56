# DeiT-Ti with convolutional stem and Performer attention, DeiT*, on ImageNet-1k: a baseline (VARS, table 2).
# Weights: random.
_base_ = '../deit-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='performer'))
