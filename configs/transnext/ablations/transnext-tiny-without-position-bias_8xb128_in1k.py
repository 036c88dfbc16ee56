# TransNeXt-Tiny without position bias in both paths on ImageNet-1k (TransNeXt, table 6, row 1).
# Weights: random.
_base_ = '../transnext-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position_bias=dict(type='bioattn_mm.NoPositionBias')))
