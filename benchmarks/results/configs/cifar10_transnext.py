# TransNeXt at 96 pixels: grids of 24, 12, 6 and 3 tokens a side.
_base_ = './cifar10_at_96.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.TransNeXt',
        arch=dict(embed_dims=(24, 48, 72, 120), num_heads=(1, 2, 3, 5), depths=(1, 1, 2, 1)),
        pretrain_size=_base_.size,
        img_size=_base_.size,
        out_indices=(3,),
    ),
    head=dict(in_channels=120),
)
