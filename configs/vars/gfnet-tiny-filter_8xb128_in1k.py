# GFNet-Ti's own global filter on ImageNet-1k, 300 epochs of 224 x 224: the baseline GFNet-Ti* (VARS, table 2).
# Weights: random.
_base_ = './gfnet-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='global_filter'))
