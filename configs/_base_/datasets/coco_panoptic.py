# COCO 2017, panoptic segmentation, with large-scale jittering. Download the images, the annotations and the panoptic
# annotations from https://cocodataset.org. The instances are rated by their own annotations, too.
_base_ = './coco_instance_jitter.py'
dataset_type = 'CocoPanopticDataset'
# The pipeline is that of instances without the filter, because an image may have stuff alone.
train_pipeline = [
    _base_.train_pipeline[0],
    dict(type='bioattn_mm.CheckedLoadPanopticAnnotations', with_bbox=True, with_mask=True, with_seg=True),
    *(step for step in _base_.train_pipeline[2:] if step.type != 'FilterAnnotations'),
]
train_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(seg='annotations/panoptic_train2017/'),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(seg='annotations/panoptic_val2017/'),
    )
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(
        type='bioattn_mm.CocoPanopticMetric',
        ann_file=f'{_base_.data_root}/annotations/panoptic_val2017.json',
        seg_prefix=f'{_base_.data_root}/annotations/panoptic_val2017',
    ),
    _base_.val_evaluator,
]
test_evaluator = val_evaluator
