# What every detection config shares: scope and visualization.
_base_ = './common.py'
default_scope = 'mmdet'
visualizer = dict(type='bioattn_mm.DetVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
