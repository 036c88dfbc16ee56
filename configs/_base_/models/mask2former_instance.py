# Mask2Former for instance segmentation of COCO, mmdet's settings. A config adds the backbone and the head's
# `in_channels`.
_base_ = './mask2former_panoptic.py'
model = dict(
    data_preprocessor=dict(
        pad_seg=False,
        batch_augments=[
            dict(
                type='BatchFixedSizePad',
                size=(1024, 1024),
                img_pad_value=0,
                pad_mask=True,
                mask_pad_value=0,
                pad_seg=False,
            )
        ],
    ),
    panoptic_head=dict(num_stuff_classes=0, loss_cls=dict(class_weight=[1.0] * 80 + [0.1])),
    panoptic_fusion_head=dict(num_stuff_classes=0),
    test_cfg=dict(panoptic_on=False),
)
