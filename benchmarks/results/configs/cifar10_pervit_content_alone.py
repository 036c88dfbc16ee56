# PerViT without Phi_p: attention by content alone (PerViT, table 3, row b).
_base_ = './cifar10_pervit.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.ContentAttention')))
