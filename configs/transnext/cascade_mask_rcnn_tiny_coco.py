# Cascade Mask R-CNN with TransNeXt-Tiny on COCO, 12 epochs: mmdet's heads, and all else as in Mask R-CNN.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = [
    'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtimes/mmdet.py',
    '../_base_/backbones/transnext.py',
]
model = dict(
    backbone=dict(_base_.pop('backbone'), _delete_=True, img_size=800, drop_path_rate=0.3),
    neck=dict(in_channels=[72, 144, 288, 576]),
)
# Multi-scale testing extrapolates the position bias, and merges boxes alone.
tta_overrides = dict(
    model=dict(
        backbone=dict(bias_mode='extrapolate'),
        roi_head=dict(mask_head=None, mask_roi_extractor=None),
    ),
    test_evaluator=dict(metric='bbox'),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
