# ADE20K's panoptic segmentation: 100 classes with instances and 50 without. The annotations are those that
# tools/convert_ade20k.py writes.
_base_ = './ade20k_instance.py'
dataset_type = 'ADE20KPanopticDataset'
# The pipeline is that of instances without the filter, because an image may have stuff alone.
train_pipeline = [
    _base_.train_pipeline[0],
    dict(type='bioattn_mm.CheckedLoadPanopticAnnotations', with_bbox=True, with_mask=True, with_seg=True),
    *(step for step in _base_.train_pipeline[2:] if step.type != 'FilterAnnotations'),
]
train_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        ann_file='ade20k_panoptic_train.json',
        data_prefix=dict(seg='ade20k_panoptic_train/'),
        # An image without instances has stuff to learn.
        filter_cfg=dict(filter_empty_gt=False),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(type=dataset_type, ann_file='ade20k_panoptic_val.json', data_prefix=dict(seg='ade20k_panoptic_val/'))
)
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='bioattn_mm.CocoPanopticMetric',
    ann_file=f'{_base_.data_root}/ade20k_panoptic_val.json',
    seg_prefix=f'{_base_.data_root}/ade20k_panoptic_val',
)
test_evaluator = val_evaluator
