# PerViT-Tiny whose position-based attention starts with random values on ImageNet-1k (PerViT, table 5).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position_init='random'))
