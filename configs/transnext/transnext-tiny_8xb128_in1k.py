# TransNeXt-Tiny on ImageNet-1k, 300 epochs of 224 x 224 (TransNeXt, table 1).
# Weights: random.
_base_ = './transnext-micro_8xb128_in1k.py'
model = dict(backbone=dict(arch='tiny', drop_path_rate=0.25), head=dict(in_channels=576))
