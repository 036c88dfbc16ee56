# A TransNeXt of 2.3 M parameters with ConvGLU and windows of 3 x 3 on CIFAR-100, whose shape the paper does not say:
# found by the parameters and FLOPs of table 8 (TransNeXt, table 7, row 1).
# Weights: random.
_base_ = '../../_base_/recipes/cifar100.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch=dict(embed_dims=(24, 48, 168, 264), num_heads=(1, 2, 7, 11), depths=(2, 2, 2, 1)),
        out_indices=(3,),
    ),
    head=dict(in_channels=264),
)
