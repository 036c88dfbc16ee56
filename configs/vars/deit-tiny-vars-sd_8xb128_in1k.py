# VARS-SD in DeiT-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2), with DeiT's recipe.
# The recurrence is the release's; in the table nothing of it is learned.
# Weights: random.
_base_ = './deit-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='vars_sd'))
