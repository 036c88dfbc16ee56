# GABViT-Small with a Gaussian for each head instead of one for a layer, on ImageNet-1k, which the paper's appendix
# compares (GAB, section 4).
# Weights: random.
_base_ = '../gabvit-small_8xb128_in1k.py'
model = dict(backbone=dict(gaussian_per_head=True))
