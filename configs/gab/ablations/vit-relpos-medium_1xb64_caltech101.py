# GABViT-Medium's host, without Gaussians, fine-tuned on Caltech-101 (GAB, table 3): the baseline.
# Weights: timm's classifier of ImageNet-1k, fetched when training starts; its position bias is drawn anew.
_base_ = './gabvit-medium_1xb64_caltech101.py'
# An amplitude of 0 has no gradient: it stays.
model = dict(backbone=dict(amplitude=0.0))
