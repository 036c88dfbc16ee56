# What every segmentation config shares: scope, visualisation, multi-scale testing; crops of one size.
_base_ = './common.py'
default_scope = 'mmseg'
env_cfg = dict(cudnn_benchmark=True)
visualizer = dict(type='SegLocalVisualizer', vis_backends=_base_.vis_backends, name='visualizer')
log_processor = dict(by_epoch=False)
tta_model = dict(type='SegTTAModel')
