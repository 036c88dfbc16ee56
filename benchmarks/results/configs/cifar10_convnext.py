# A ConvNeXt with as many parameters as the TransNeXt.
_base_ = './cifar10_at_96.py'
model = dict(
    backbone=dict(
        type='ConvNeXt',
        arch=dict(depths=[1, 1, 3, 1], channels=[24, 48, 96, 160]),
        out_indices=(3,),
        gap_before_final_norm=False,
    ),
    head=dict(in_channels=160),
)
