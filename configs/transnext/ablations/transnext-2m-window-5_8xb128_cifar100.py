# A TransNeXt of 2.3 M parameters with windows of 5 x 5 on CIFAR-100 (TransNeXt, table 8, 5 x 5).
# Weights: random.
_base_ = './transnext-2m_8xb128_cifar100.py'
model = dict(backbone=dict(window_size=5))
