# Mask2Former for panoptic segmentation on COCO, on four feature maps of a plain backbone; a config adds the
# backbone and the neck's `in_channels`.
_base_ = ['./mask2former_coco_panoptic.py', '../backbones/plain.py']
model = dict(
    neck=dict(_base_.pop('neck'), head_strides=_base_.model.panoptic_head.strides),
    panoptic_head=dict(in_channels=[256] * 4),
)
# The whole backbone learns at a tenth of the rate, as in Mask2Former with any backbone: no layer decay.
optim_wrapper = dict(paramwise_cfg=_base_.pop('paramwise_cfg'))
