# Softmax attention in a small DeiT with VARS's convolutional stem.
_base_ = './cifar10.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.VARS',
        arch=dict(block='deit', embed_dims=[64], depths=[6], num_heads=[4], feature_ratio=1),
        attention='softmax',
        pretrain_size=_base_.size,
        out_indices=(5,),
        out_type='avg_featmap',
    ),
    neck=None,
    head=dict(in_channels=64),
)
