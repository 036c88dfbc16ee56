# Mask2Former with Swin-T on COCO, panoptic segmentation, 50 epochs: a baseline under the recipe of the other systems.
# Weights: Swin's ImageNet-1k release, fetched when training starts.
_base_ = [
    '../_base_/recipes/mask2former_coco_panoptic.py',
    '../_base_/backbones/swin.py',
    '../_base_/backbones/swin_tiny_mmdet.py',
]
model = dict(
    backbone=dict(_base_.pop('backbone'), drop_path_rate=0.3), panoptic_head=dict(in_channels=[96, 192, 384, 768])
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys')))
