# PerViT-Tiny with a learned vector for each offset in place of Euclidean distances on ImageNet-1k (PerViT, table 5).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(distance_embedding=dict(type='bioattn_mm.OffsetEmbedding')))
