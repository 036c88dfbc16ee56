# UperNet with ConViT-Tiny on ADE20K, 160k iterations.
# Weights: the authors' ImageNet-1k release, fetched when training starts.
_base_ = '../_base_/recipes/plain_upernet_ade20k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.ConViT',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='https://dl.fbaipublicfiles.com/convit/convit_tiny.pth'),
    ),
    neck=dict(in_channels=[192] * 4),
)
