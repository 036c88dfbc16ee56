# TransNeXt-Micro with scaled dot products instead of length-scaled cosines and query embedding on ImageNet-1k (ours,
# in no table of the paper).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(scale=dict(type='bioattn_mm.DotProductQuery'))))
