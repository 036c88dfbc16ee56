# A TransNeXt of 2.3 M parameters with windows of 9 x 9 on CIFAR-100 (TransNeXt, table 8, 9 x 9).
# Weights: random.
_base_ = './transnext-2m_8xb128_cifar100.py'
model = dict(backbone=dict(window_size=9))
