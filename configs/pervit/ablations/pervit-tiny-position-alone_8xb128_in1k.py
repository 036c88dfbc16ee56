# PerViT-Tiny whose attention is by position alone, Phi_p without Phi_c, on ImageNet-1k (PerViT, table 1).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.PositionAttention')))
