# PerViT-Tiny whose attention is by position alone, Phi_p without Phi_c, on ImageNet-1k; wider, for as many FLOPs
# (footnote 8) (PerViT, table 1, row c).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dims=(144, 212, 248, 312),
            depths=(2, 2, 6, 2),
            stem_channels=(48, 64, 96),
            num_heads=4,
        ),
        token_mixers=dict(type='bioattn_mm.PositionAttention'),
    ),
    head=dict(in_channels=312),
)
