# PerViT-Tiny with DeiT's patch embedding instead of the convolutional stem on ImageNet-1k; wider, for as many FLOPs,
# of which the paper's footnote 8 speaks in rows f, h and i and its table in this one, too (PerViT, table 1, row d).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dims=(132, 200, 232, 288),
            depths=(2, 2, 6, 2),
            stem_channels=(48, 64, 96),
            num_heads=4,
        ),
        stem=dict(type='bioattn_mm.PatchStem'),
    ),
    head=dict(in_channels=288),
)
