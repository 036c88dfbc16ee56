# Mask2Former with ConViT-Small on COCO, panoptic segmentation, 50 epochs.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/plain_mask2former_coco_panoptic.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.ConViT',
        arch='small',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='https://dl.fbaipublicfiles.com/convit/convit_small.pth'),
    ),
    neck=dict(in_channels=[432] * 4),
)
