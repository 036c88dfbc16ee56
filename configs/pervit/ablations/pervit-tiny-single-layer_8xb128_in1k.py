# PerViT-Tiny with a peripheral projection of a single layer on ImageNet-1k (PerViT, table 5).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(position=dict(type='bioattn_mm.SingleLayerPosition'))))
