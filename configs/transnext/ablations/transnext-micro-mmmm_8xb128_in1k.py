# TransNeXt-Micro with multi-head self-attention to all tokens in all four stages on ImageNet-1k (TransNeXt, table 9).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.LengthScaledAttention')))
