# UperNet on four feature maps of a plain backbone; a config adds the backbone and the neck's `in_channels`.
_base_ = ['./upernet_ade20k.py', '../backbones/plain.py']
model = dict(neck=_base_.pop('neck'), decode_head=dict(in_channels=[256] * 4), auxiliary_head=dict(in_channels=256))
# Weight decay 0.05 is BEiT's (mmseg's DeiT: 0.01). Layer decay: see plain_mask_rcnn_coco.py.
optim_wrapper = dict(constructor='bioattn_mm.CombinedRulesConstructor', paramwise_cfg=_base_.pop('paramwise_cfg'))
