# VARS-S in the small DeiT.
_base_ = './cifar10_softmax.py'
model = dict(backbone=dict(attention='vars_s'))
