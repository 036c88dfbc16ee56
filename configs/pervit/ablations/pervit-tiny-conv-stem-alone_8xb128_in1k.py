# PerViT-Tiny without Phi_p and conditional position encoding (CPE) on ImageNet-1k (PerViT, table 1, row g).
# Weights: random.
_base_ = './pervit-tiny-without-cpe_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.ContentAttention')))
