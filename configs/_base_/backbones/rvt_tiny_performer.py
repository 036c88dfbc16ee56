# Performer in RVT-Ti, pre-trained on ImageNet-1k.
_base_ = './rvt_tiny_vars_s.py'
backbone = dict(attention='performer', init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_performer.pth'))
