# A TransNeXt of 2.3 M parameters on CIFAR-100, the convolution of ConvGLU after the product (TransNeXt, table 7, type
# 3).
# Weights: random.
_base_ = './transnext-2m_8xb128_cifar100.py'
model = dict(backbone=dict(channel_mixer=dict(type='bioattn_mm.OtherConvGLU', design=3)))
