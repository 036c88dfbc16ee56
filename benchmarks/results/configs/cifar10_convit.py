# ConViT, 5 of 6 blocks with GPSA, as 10 of 12 in the paper.
_base_ = './cifar10.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.ConViT',
        arch=dict(embed_dims=64, num_layers=6, num_heads=4),
        local_up_to_layer=5,
        pretrain_size=_base_.size,
        out_indices=(5,),
        out_type='cls_token',
    ),
    neck=None,
    head=dict(in_channels=64),
)
