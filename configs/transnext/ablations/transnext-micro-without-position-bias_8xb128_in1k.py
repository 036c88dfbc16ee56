# TransNeXt-Micro without the position bias of pooled tokens on ImageNet-1k (TransNeXt, table 6).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(position_bias=dict(type='bioattn_mm.NoPositionBias')))
