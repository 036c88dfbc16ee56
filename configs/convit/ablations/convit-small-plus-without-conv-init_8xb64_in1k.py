# ConViT-Small+ without convolutional initialisation on ImageNet-1k (ConViT, table 3, row c).
# Weights: random.
_base_ = '../convit-small-plus_8xb64_in1k.py'
model = dict(backbone=dict(locality_strength=None))
