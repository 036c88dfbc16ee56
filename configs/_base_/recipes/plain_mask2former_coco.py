# Mask2Former for instance segmentation on COCO, on four feature maps of a plain backbone; a config adds the
# backbone and the neck's `in_channels`.
_base_ = './mask2former_coco.py'
model = dict(
    neck=dict(
        type='bioattn_mm.SimpleFeaturePyramid',
        out_channels=256,
        scales=(4, 2, 1, 0.5),
        head_strides=_base_.model.panoptic_head.strides,
    ),
    panoptic_head=dict(in_channels=[256] * 4),
)
# The whole backbone learns at a tenth of the rate, as in Mask2Former with any backbone: no layer decay.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={name: dict(decay_mult=0.0) for name in ('backbone.pos_embed', 'backbone.cls_token')},
        flat_decay_mult=0.0,
    ),
)
