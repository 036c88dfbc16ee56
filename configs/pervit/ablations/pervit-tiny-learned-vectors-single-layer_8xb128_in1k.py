# PerViT-Tiny whose Phi_p is a linear map of each distance of learned vectors, Lrn, on ImageNet-1k (PerViT, table 5).
# Weights: random.
_base_ = './pervit-tiny-single-layer_8xb128_in1k.py'
model = dict(backbone=dict(distance_embedding=dict(type='bioattn_mm.VectorDistance')))
