# TransNeXt-Tiny with a learned number for each offset as bias of the pooled tokens on ImageNet-1k (TransNeXt, table
# 6, row 4).
# Weights: random.
_base_ = '../transnext-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position_bias=dict(type='bioattn_mm.RelativePositionBias')))
