# TransNeXt-Tiny with log-CPB as the bias of the window, too, on ImageNet-1k (TransNeXt, table 6, row 2).
# Weights: random.
_base_ = '../transnext-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position_bias=dict(type='bioattn_mm.LogCPBOfBothPaths')))
