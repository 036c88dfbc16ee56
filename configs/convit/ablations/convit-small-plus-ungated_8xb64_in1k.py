# ConViT-Small+ with its gates frozen at 0 on ImageNet-1k (ConViT, table 3, row b).
# Weights: random.
_base_ = '../convit-small-plus_8xb64_in1k.py'
model = dict(backbone=dict(token_mixers=dict(type='bioattn_mm.UngatedGPSA')))
