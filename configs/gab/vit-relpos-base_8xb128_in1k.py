# GABViT-Base's host, without Gaussians, on ImageNet-1k: the baseline.
# Weights: random.
_base_ = './gabvit-base_8xb128_in1k.py'
model = dict(backbone=dict(amplitude=0.0))
