"""Arguments of backbones with the parts that the papers' tables exchange, by the system and what differs."""

from bioattn_mm.systems.transnext import TransNeXt

from .small_backbones import CASES


def layer(name: str, **arguments: object) -> dict:
    return dict(type=f'bioattn_mm.{name}', **arguments)


# TransNeXt, tables 2 and 5 to 9.
TRANSNEXT = {
    'all tokens': dict(token_mixers=layer('LengthScaledAttention')),
    'pixel-focused': dict(token_mixers=[*[layer('PixelFocusedAttention')] * 3, {}]),
    'windows': dict(window_size=(3, 5, 7, 3)),
    'no embedding': dict(token_mixers=dict(scale=layer('CosineQueryWithoutEmbedding'))),
    'no bias': dict(position_bias=layer('NoPositionBias')),
    'learned bias': dict(position_bias=layer('RelativePositionBias')),
    'learned bias of all': dict(
        position_bias=layer('RelativePositionBias'), token_mixers=layer('LengthScaledAttention')
    ),
    'GLU': dict(channel_mixer=layer('GLU')),
    'type 2': dict(channel_mixer=layer('OtherConvGLU', design=2)),
    'bias of both': dict(position_bias=layer('LogCPBOfBothPaths')),
    'dynamic bias': dict(token_mixers=[*[layer('DynamicBiasAttention')] * 3, {}]),
    'reduction': dict(token_mixers=layer('SpatialReductionAttention')),
    'unscaled': TransNeXt.position_bias_settings('unscaled', 64),
}
# DeiT, whose blocks have one width.
DEIT = dict(
    arch=dict(embed_dims=(12,) * 4, depths=(1,) * 4, stem_channels=(4, 4, 4), num_heads=3),
    stem=layer('PatchStem'),
    position_conv=layer('NoConditionalPosition'),
    pos_embed=layer('PositionEmbedding'),
    out_indices=(3,),
)
# PerViT, tables 1, 2 and 5; the last is no row: another attention in some of the blocks.
PERVIT = {
    'Phi_p alone': dict(token_mixers=layer('PositionAttention')),
    'Phi_c alone': dict(token_mixers=layer('ContentAttention')),
    'no stem': dict(stem=layer('PatchStem')),
    'no CPE': dict(position_conv=layer('NoConditionalPosition')),
    'Euc + ML': dict(token_mixers=dict(position=layer('VariedPosition', with_neighbours=False))),
    'Euc': dict(token_mixers=dict(position=layer('VariedPosition', with_neighbours=False, num_layers=1))),
    'Lrn + N + ML': dict(
        distance_embedding=layer('VectorDistance'),
        token_mixers=dict(position=layer('VariedPosition')),
        position_init='random',
    ),
    'DeiT': dict(DEIT, token_mixers=dict(qkv_bias=True)),
    'Phi_c alone in the first two blocks': dict(token_mixers=[layer('ContentAttention')] * 2 + [dict()] * 10),
}
# VARS, table 2, without steps and sparsity.
VARS = {
    f'{block}, {dictionary}': dict(
        arch=CASES['VARS'].arch | dict(block=block),
        attention=layer('IstaReconstructionAttention', **grid),
        num_steps=0,
        sparsity=0.0,
    )
    for block in ('rvt', 'deit', 'gfnet')
    for dictionary, grid in (('dynamic', dict(static_grid=None)), ('and static', {}))
}
ABLATIONS = {
    **{
        f'TransNeXt {name}, {mode}': dict(bias_mode=mode, img_size=64, pretrain_size=64) | options
        for name, options in TRANSNEXT.items()
        for mode in ('extrapolate', 'interpolate')
    },
    **{f'PerViT {name}': options for name, options in PERVIT.items()},
    **{f'VARS {name}': options for name, options in VARS.items()},
}
