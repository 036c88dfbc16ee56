# VARS-SD in RVT-S on ImageNet-1k, 300 epochs of 224 x 224: of the authors' release, in no table of the paper.
# Weights: random.
_base_ = './rvt-tiny-vars-sd_8xb128_in1k.py'
model = dict(backbone=dict(arch='rvt-small'))
