# VARS-D in DeiT-Ti, pre-trained on ImageNet-1k.
_base_ = './deit_tiny_vars_s.py'
backbone = dict(attention='vars_d', init_cfg=dict(checkpoint='checkpoints/vars_deit_tiny_vars_d.pth'))
