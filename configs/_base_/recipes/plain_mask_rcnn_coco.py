# Mask R-CNN on the last feature map of a plain backbone of 12 blocks (ViTDet); a config adds the backbone and the
# neck's `in_channels`.
_base_ = ['./mask_rcnn_coco.py', '../backbones/plain.py']
model = dict(
    backbone=dict(out_indices=(11,)),
    neck=dict(
        _base_.pop('neck'),
        _delete_=True,
        scales=(4, 2, 1, 0.5, 0.25),
        head_strides=_base_.model.rpn_head.anchor_generator.strides,
    ),
)
# All weights are from supervised training on ImageNet-1k. mmseg fine-tunes such models (DeiT, ViT) at one rate, and
# so do the tiny variants here: with 0.75, the layer decay of large self-supervised models, their first block would
# learn at a thirtieth of the rate. Larger variants set BEiT's `layer_decay_rate=0.9`.
optim_wrapper = dict(constructor='bioattn_mm.CombinedRulesConstructor', paramwise_cfg=_base_.pop('paramwise_cfg'))
