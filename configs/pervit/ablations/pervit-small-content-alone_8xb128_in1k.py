# PerViT-Small whose attention is by content alone, Phi_c without Phi_p, on ImageNet-1k (PerViT, table 3, row b).
# Weights: random.
_base_ = '../pervit-small_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.ContentAttention')))
