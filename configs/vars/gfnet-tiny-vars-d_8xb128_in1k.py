# VARS-D in GFNet-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2), with GFNet's recipe.
# It has 9.1 M parameters, the paper 9.8 M. Tried were numbers of heads, and counting the fixed projections and Gamma.
# The filters of GFNet-Ti beside VARS would give 9.82 M, but section 4 says that VARS replaces them.
# Weights: random.
_base_ = './gfnet-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='vars_d'))
