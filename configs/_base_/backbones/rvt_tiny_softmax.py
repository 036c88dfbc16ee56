# Self-attention in RVT-Ti, pre-trained on ImageNet-1k.
_base_ = './rvt_tiny_vars_s.py'
backbone = dict(attention='softmax', init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_softmax.pth'))
