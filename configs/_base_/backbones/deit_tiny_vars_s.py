# VARS-S in DeiT-Ti, pre-trained on ImageNet-1k.
_base_ = './rvt_tiny_vars_s.py'
backbone = dict(arch='deit-tiny', init_cfg=dict(checkpoint='checkpoints/vars_deit_tiny_vars_s.pth'))
