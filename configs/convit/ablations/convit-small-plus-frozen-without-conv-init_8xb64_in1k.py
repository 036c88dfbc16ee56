# ConViT-Small+ with GPSA frozen at random values on ImageNet-1k (ConViT, table 3, row g).
# Weights: random.
_base_ = './convit-small-plus-frozen_8xb64_in1k.py'
model = dict(backbone=dict(locality_strength=None))
