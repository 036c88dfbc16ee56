# PerViT-Tiny with distances of learned vectors in place of Euclidean ones, Lrn + N + ML, on ImageNet-1k (PerViT,
# table 5).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=dict(position=dict(type='bioattn_mm.VariedPosition')),
        distance_embedding=dict(type='bioattn_mm.VectorDistance'),
    )
)
