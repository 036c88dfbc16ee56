# What every detection config shares: scope, visualisation; images of many sizes.
_base_ = './common.py'
default_scope = 'mmdet'
visualizer = dict(type='DetLocalVisualizer', vis_backends=_base_.vis_backends, name='visualizer')
