# PVTv2 with the depth and width of TransNeXt-Micro and its 24 channels a head on ImageNet-1k (TransNeXt, table 2,
# step 3).
# Weights: random.
_base_ = './pvt-v2-deeper_8xb128_in1k.py'
model = dict(backbone=dict(arch=dict(num_heads=(2, 4, 8, 16))))
