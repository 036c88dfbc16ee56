# DeiT-Tiny, without class token, on ImageNet-1k: the host as it is (PerViT, table 2).
# Weights: random.
_base_ = './deit-tiny-peripheral_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.ContentAttention')))
