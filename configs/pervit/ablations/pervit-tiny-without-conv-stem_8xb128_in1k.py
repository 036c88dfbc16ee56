# PerViT-Tiny with DeiT's patch embedding instead of the convolutional stem on ImageNet-1k (PerViT, table 1).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(stem=dict(type='bioattn_mm.PatchStem')))
