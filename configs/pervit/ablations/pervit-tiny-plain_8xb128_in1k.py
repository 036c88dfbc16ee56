# PerViT-Tiny without Phi_p, convolutional stem and conditional position encoding (CPE) on ImageNet-1k; wider, for as
# many FLOPs (footnote 8) (PerViT, table 1, row i).
# Weights: random.
_base_ = './pervit-tiny-without-conv-stem-and-cpe_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.ContentAttention')))
