# Mask2Former for panoptic segmentation of COCO, mmdet's settings. Losses and decoders are those of mmseg's head,
# which is mmdet's. A config adds the backbone and the head's `in_channels`.
_base_ = './mask2former.py'
model = dict(
    _delete_=True,
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=_base_.model.data_preprocessor.mean,
        std=_base_.model.data_preprocessor.std,
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        mask_pad_value=0,
        pad_seg=True,
        seg_pad_value=255,
        # Training images are as large as the crop, black around a smaller one.
        batch_augments=[
            dict(
                type='BatchFixedSizePad',
                size=(1024, 1024),
                img_pad_value=0,
                pad_mask=True,
                mask_pad_value=0,
                pad_seg=True,
                seg_pad_value=255,
            )
        ],
    ),
    panoptic_head=dict(
        type='Mask2FormerHead',
        num_things_classes=80,
        num_stuff_classes=53,
        loss_cls=dict(_base_.model.decode_head.loss_cls, class_weight=[1.0] * 133 + [0.1]),
        **{
            key: _base_.model.decode_head[key]
            for key in (
                'strides',
                'feat_channels',
                'out_channels',
                'num_queries',
                'num_transformer_feat_level',
                'pixel_decoder',
                'enforce_decoder_input_project',
                'positional_encoding',
                'transformer_decoder',
                'loss_mask',
                'loss_dice',
            )
        },
    ),
    panoptic_fusion_head=dict(type='MaskFormerFusionHead', num_things_classes=80, num_stuff_classes=53),
    train_cfg=_base_.model.decode_head.train_cfg,
    test_cfg=dict(panoptic_on=True, instance_on=True, max_per_image=100, iou_thr=0.8, filter_low_score=True),
)
