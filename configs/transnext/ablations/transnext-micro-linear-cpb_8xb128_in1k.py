# TransNeXt-Micro with a position bias of linearly spaced coordinates on ImageNet-1k (ours, in no table of the paper).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(position_bias=dict(type='bioattn_mm.LinearCPB')))
