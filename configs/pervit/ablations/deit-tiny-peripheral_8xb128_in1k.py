# PerViT's peripheral attention in DeiT-Tiny, without class token, on ImageNet-1k (PerViT, table 2).
# Weights: random.
_base_ = '../../_base_/recipes/deit_in1k.py'
model = dict(
    backbone=dict(
        type='bioattn_mm.PerViT',
        # Blocks of one width.
        arch=dict(embed_dims=(192,) * 4, depths=(3,) * 4, stem_channels=(24, 48, 96), num_heads=3),
        stem=dict(type='bioattn_mm.PatchStem'),
        pos_embed=dict(type='bioattn_mm.PositionEmbedding'),
        position_conv=dict(type='bioattn_mm.NoConditionalPosition'),
        token_mixers=dict(qkv_bias=True),
        out_indices=(11,),
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=192),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.pos_embed': dict(decay_mult=0.0)}))
