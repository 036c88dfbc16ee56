# TransNeXt-Micro without query embedding: positional attention on ImageNet-1k (TransNeXt, table 2, step 7).
# Weights: random.
_base_ = '../transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(token_mixers=dict(scale=dict(type='bioattn_mm.CosineQueryWithoutEmbedding'))))
