# Mask R-CNN with PerViT-Medium on COCO, 12 epochs.
# Weights: the authors' ImageNet-1k release, to be put into checkpoints/ by hand.
_base_ = './mask_rcnn_tiny_coco.py'
model = dict(
    backbone=dict(arch='medium', drop_path_rate=0.2, init_cfg=dict(checkpoint='checkpoints/pervit_medium.pth')),
    neck=dict(in_channels=684),
)
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
