# TransNeXt-Micro with multi-head self-attention to all tokens in all four stages on ImageNet-1k (TransNeXt, table 9,
# M-M-M-M).
# Weights: random.
_base_ = './transnext-micro-aamm_8xb128_in1k.py'
model = dict(backbone=dict(arch=dict(sr_ratios=(1, 1, 1, 1))))
