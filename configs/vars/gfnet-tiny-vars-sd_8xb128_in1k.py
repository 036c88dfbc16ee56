# VARS-SD in GFNet-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2), with GFNet's recipe.
# Weights: random.
_base_ = './gfnet-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='vars_sd'))
