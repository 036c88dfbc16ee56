# RetinaNet with TransNeXt-Tiny on COCO, 12 epochs: mmdet's head on strides 8 to 128.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtimes/mmdet.py',
    '../_base_/backbones/transnext.py',
]
model = dict(
    backbone=dict(_base_.pop('backbone'), _delete_=True, img_size=800, out_indices=(1, 2, 3), drop_path_rate=0.3),
    neck=dict(in_channels=[144, 288, 576], start_level=0),
)
# Boxes without masks.
train_pipeline = [
    _base_.train_pipeline[0],
    dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True),
    *_base_.train_pipeline[2:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
# Multi-scale testing extrapolates the position bias.
tta_overrides = dict(model=dict(backbone=dict(bias_mode='extrapolate')))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
