# GABViT-Small's host, without Gaussians, fine-tuned on Stanford Cars (GAB, table 3): the baseline.
# Weights: timm's classifier of ImageNet-1k, fetched when training starts; its position bias is drawn anew.
_base_ = './gabvit-small_1xb64_cars.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
