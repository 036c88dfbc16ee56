# GABViT. Sigma is in patches: the same part of the image as 5 patches are of the paper's 14.
_base_ = './cifar10.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.GABViT',
        arch=dict(embed_dims=64, num_layers=6, num_heads=4),
        sigma=3.0,
        out_indices=(5,),
        out_type='avg_featmap',
    ),
    neck=None,
    head=dict(in_channels=64),
)
