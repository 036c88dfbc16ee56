# ConViT-Small+ with GPSA frozen as it is initialised, as convolutions on ImageNet-1k (ConViT, table 3, row f).
# Weights: random.
_base_ = '../convit-small-plus_8xb64_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.FrozenGPSA')))
