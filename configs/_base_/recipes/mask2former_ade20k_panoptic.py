# Mask2Former for panoptic segmentation on ADE20K, 160k iterations with the settings of its authors; a config adds the
# backbone and the head's `in_channels`.
_base_ = [
    '../models/mask2former_panoptic.py',
    '../datasets/ade20k_panoptic.py',
    '../schedules/mask2former_160k.py',
    '../runtimes/mmdet_panoptic.py',
]
model = dict(
    data_preprocessor=dict(batch_augments=[dict(_base_.model.data_preprocessor.batch_augments[0], size=(640, 640))]),
    panoptic_head=dict(num_things_classes=100, num_stuff_classes=50, loss_cls=dict(class_weight=[1.0] * 150 + [0.1])),
    panoptic_fusion_head=dict(num_things_classes=100, num_stuff_classes=50),
    # Segments are rated, instances are not.
    test_cfg=dict(instance_on=False),
)
default_hooks = dict(
    checkpoint=dict(save_best='coco_panoptic/PQ', rule='greater'), visualization=dict(type='DetVisualizationHook')
)
log_processor = dict(by_epoch=False)
