# ConViT-Small on ImageNet-1k, 300 epochs of 224 x 224 (ConViT, table 1).
# Weights: random.
_base_ = './convit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=432))
