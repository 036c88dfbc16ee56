# What every classification config shares: scope, visualization, flip testing.
_base_ = './common.py'
default_scope = 'mmpretrain'
# Images are of one size, so measuring the fastest algorithm once pays.
env_cfg = dict(cudnn_benchmark=True)
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
tta_model = dict(type='AverageClsScoreTTA')
