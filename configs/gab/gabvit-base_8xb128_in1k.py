# GABViT-Base on ImageNet-1k, 300 epochs of 224 x 224: the recipe of its host; GAB's text has none.
# Weights: random.
_base_ = './gabvit-small_8xb128_in1k.py'
model = dict(backbone=dict(arch='base'), head=dict(in_channels=768))
