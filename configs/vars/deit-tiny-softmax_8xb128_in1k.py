# Self-attention in DeiT-Ti with convolutional stem on ImageNet-1k, 300 epochs of 224 x 224: a baseline, ours; the
# paper's DeiT* has Performer attention (VARS, table 2).
# Weights: random.
_base_ = './deit-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(attention='softmax'))
