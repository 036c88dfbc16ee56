# GABViT-Medium's host, without Gaussians, on ImageNet-1k: the baseline.
# Weights: random.
_base_ = './gabvit-medium_8xb128_in1k.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
