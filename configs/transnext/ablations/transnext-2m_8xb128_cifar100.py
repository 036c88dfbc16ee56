# A TransNeXt of 2.3 M parameters with ConvGLU and windows of 3 x 3 on CIFAR-100, whose shape the paper does not say:
# found by the parameters and FLOPs of table 8 (TransNeXt, table 7, row 1). Nor does it say the recipe: that of
# TransNeXt-Micro on ImageNet-1k is taken.
# Weights: random.
_base_ = ['../../_base_/recipes/cifar100.py', '../../_base_/backbones/transnext_classifier.py']
model = dict(
    backbone=dict(
        _base_.pop('backbone'),
        arch=dict(embed_dims=(24, 48, 168, 264), num_heads=(1, 2, 7, 11), depths=(2, 2, 2, 1)),
        drop_path_rate=0.15,
    ),
    head=dict(in_channels=264),
)
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0, norm_type=2), paramwise_cfg=dict(custom_keys=_base_.pop('custom_keys'))
)
