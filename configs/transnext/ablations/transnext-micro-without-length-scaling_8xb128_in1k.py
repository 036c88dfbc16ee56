# TransNeXt-Micro with a learned scale instead of length scaling on ImageNet-1k (TransNeXt, table 3, fig. 6).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(scale=dict(type='bioattn_mm.LearnedScaleQuery'))))
