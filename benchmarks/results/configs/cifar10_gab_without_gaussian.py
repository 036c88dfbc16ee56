# GABViT's host, with relative positions and without Gaussians: an amplitude of 0 has no gradient.
_base_ = './cifar10_gab.py'
model = dict(backbone=dict(amplitude=0.0))
