# Mask R-CNN with ConvNeXt-T on COCO, 12 epochs: a baseline under the recipe of the other systems.
# Weights: ConvNeXt's ImageNet-1k release as mmpretrain converted it, fetched when training starts.
_base_ = '../_base_/recipes/mask_rcnn_coco.py'
model = dict(
    backbone=dict(
        type='mmpretrain.ConvNeXt',
        arch='tiny',
        out_indices=[0, 1, 2, 3],
        drop_path_rate=0.4,
        layer_scale_init_value=1.0,
        gap_before_final_norm=False,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://mmassets.onedl.ai/mmclassification/v0/convnext/downstream/convnext-tiny_3rdparty_32xb128-noema_in1k_20220301-795e9634.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(paramwise_cfg=dict(flat_decay_mult=0.0))
