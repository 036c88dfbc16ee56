# PerViT, with widths of a third of the tiny variant's.
_base_ = './cifar10.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.PerViT',
        arch=dict(embed_dims=(48, 64, 72, 80), depths=(1, 1, 3, 1), stem_channels=(16, 24, 32), num_heads=4),
        out_indices=(5,),
    ),
    head=dict(in_channels=80),
)
