# PerViT-Tiny without conditional position encoding (CPE) on ImageNet-1k (PerViT, table 1, row e).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position_conv=dict(type='bioattn_mm.NoConditionalPosition')))
