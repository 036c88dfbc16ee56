# UperNet on four feature maps of a plain backbone; a config adds the backbone and the neck's `in_channels`.
_base_ = './upernet_ade20k.py'
model = dict(
    neck=dict(type='bioattn_mm.SimpleFeaturePyramid', out_channels=256, scales=(4, 2, 1, 0.5)),
    decode_head=dict(in_channels=[256] * 4),
    auxiliary_head=dict(in_channels=256),
)
# Weight decay 0.05 is BEiT's (mmseg's DeiT: 0.01). Layer decay: see plain_mask_rcnn_coco.py.
optim_wrapper = dict(
    constructor='bioattn_mm.CombinedRulesConstructor',
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('backbone.pos_embed', 'backbone.cls_token')},
        flat_decay_mult=0.0,
    ),
)
