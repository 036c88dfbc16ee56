# ConViT-Small+ with its gates frozen at 0, without convolutional initialisation on ImageNet-1k (ConViT, table 3, row
# d).
# Weights: random.
_base_ = './convit-small-plus-ungated_8xb64_in1k.py'
model = dict(backbone=dict(locality_strength=None))
