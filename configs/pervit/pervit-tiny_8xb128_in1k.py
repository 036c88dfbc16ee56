# PerViT-Tiny on ImageNet-1k, 300 epochs of 224 x 224 (PerViT, table 6).
# Weights: random.
_base_ = '../_base_/recipes/deit_in1k.py'
model = dict(backbone=dict(type='bioattn_mm.PerViT', arch='tiny', out_indices=(11,)), head=dict(in_channels=280))
optim_wrapper = dict(optimizer=dict(weight_decay=0.03))
