# What every segmentation config shares: scope, visualization, multi-scale testing.
_base_ = './common.py'
default_scope = 'mmseg'
# Crops are of one size, so measuring the fastest algorithm once pays.
env_cfg = dict(cudnn_benchmark=True)
visualizer = dict(type='bioattn_mm.SegVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
log_processor = dict(by_epoch=False)
tta_model = dict(type='SegTTAModel')
