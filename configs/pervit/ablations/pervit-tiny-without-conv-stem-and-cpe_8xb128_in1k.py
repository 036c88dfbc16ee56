# PerViT-Tiny without convolutional stem and conditional position encoding (CPE) on ImageNet-1k; wider, for as many
# FLOPs (footnote 8) (PerViT, table 1, row h).
# Weights: random.
_base_ = './pervit-tiny-without-conv-stem_8xb128_in1k.py'
model = dict(backbone=dict(position_conv=dict(type='bioattn_mm.NoConditionalPosition')))
