# PerViT-Small on ImageNet-1k, 300 epochs of 224 x 224 (PerViT, table 6).
# Weights: random.
_base_ = './pervit-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.1), head=dict(in_channels=464))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
