# PerViT-Tiny without Phi_p and convolutional stem on ImageNet-1k; wider, for as many FLOPs (footnote 8) (PerViT,
# table 1, row f).
# Weights: random.
_base_ = './pervit-tiny-without-conv-stem_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.ContentAttention')))
