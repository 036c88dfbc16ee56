"""Small variants of all backbones, and what is expected of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bioattn_mm.registry import MODELS
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.systems.vars.backbone import ATTENTIONS


@dataclass
class Case:
    """A small variant of a backbone, and what is expected of it."""

    arch: dict
    strides: tuple[int, ...]
    out_channels: tuple[int, ...]
    num_stages: int
    options: dict = field(default_factory=dict)


PLAIN = dict(strides=(16,) * 4, num_stages=12)
PYRAMID = dict(strides=(4, 8, 16, 32), num_stages=4)
CASES = dict(
    TransNeXt=Case(
        dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 2, 1)),
        out_channels=(8, 16, 24, 32),
        **PYRAMID,
    ),
    GABSwin=Case(
        dict(embed_dims=16, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8)), out_channels=(16, 32, 64, 128), **PYRAMID
    ),
    ConViT=Case(dict(embed_dims=8, num_layers=12, num_heads=2), out_channels=(8,) * 4, **PLAIN),
    PerViT=Case(
        dict(embed_dims=(4, 8, 8, 12), depths=(2, 2, 6, 2), stem_channels=(4, 4, 4), num_heads=2),
        out_channels=(8, 8, 12, 12),
        **PLAIN,
    ),
    GABViT=Case(dict(embed_dims=16, num_layers=12, num_heads=2), out_channels=(16,) * 4, **PLAIN),
    VARS=Case(
        dict(block='rvt', embed_dims=[8], depths=[12], num_heads=[2], feature_ratio=1),
        out_channels=(8,) * 4,
        **PLAIN,
    ),
)
RVT = dict(block='rvt', embed_dims=[8, 16], depths=[10, 2], num_heads=[2, 4], feature_ratio=2)
# The variant of each class; that of VARS has both of its strides.
ARCH = {name: case.arch for name, case in CASES.items()} | dict(VARS=RVT)


def other(name: str, options: dict, **arch: object) -> Case:
    """A backbone of `CASES` with other arguments, and other values of `arch`."""
    return replace(CASES[name], arch=CASES[name].arch | arch, options=options)


# By the name of the class and what differs from `CASES`: grids and bias of TransNeXt, host and attention of VARS.
VARIANTS = CASES | {
    'TransNeXt A-A-A-A': other('TransNeXt', {}, sr_ratios=(16, 8, 4, 2)),
    'TransNeXt interpolated': other('TransNeXt', dict(bias_mode='interpolate', img_size=64)),
    'TransNeXt pooled to 2 x 3': other('TransNeXt', dict(pool_size=(2, 3))),
    **{
        f'VARS rvt {attention}': Case(RVT, (16, 32), (8, 16), 12, dict(attention=attention))
        for attention in ATTENTIONS
    },
    **{
        f'VARS {block} {attention}': other('VARS', dict(attention=attention), block=block)
        for block, attention in (('deit', 'vars_sd'), ('gfnet', 'global_filter'), ('gfnet', 'vars_s'))
    },
}


def layer(name: str, **arguments: object) -> dict:
    return dict(type=f'bioattn_mm.{name}', **arguments)


# The parts that the papers' tables exchange. TransNeXt, tables 2 and 5 to 9.
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
    'Phi_c alone in the first two blocks': dict(token_mixers=[layer('ContentAttention')] * 2 + [dict()] * 10),
}
ISTA = layer('IstaReconstructionAttention')
ABLATIONS = {
    **{
        f'TransNeXt {name}, {mode}': other('TransNeXt', dict(bias_mode=mode, img_size=64, pretrain_size=64) | options)
        for name, options in TRANSNEXT.items()
        for mode in ('extrapolate', 'interpolate')
    },
    **{f'PerViT {name}': other('PerViT', options) for name, options in PERVIT.items()},
    'PerViT DeiT': Case(DEIT['arch'], (16,), (12,), 12, DEIT | dict(token_mixers=dict(qkv_bias=True))),
    # VARS, table 2, without steps and sparsity.
    **{
        f'VARS {block}, {name}': other('VARS', dict(attention=attention, num_steps=0, sparsity=0.0), block=block)
        for block in ('rvt', 'deit', 'gfnet')
        for name, attention in (('dynamic', ISTA | dict(static_grid=None)), ('and static', ISTA))
    },
}
every_backbone = pytest.mark.parametrize('name', CASES)
every_variant = pytest.mark.parametrize('name', VARIANTS)


def loaded(cls: type[nn.Module], weights: object, folder: Path, *arguments: object, **options: object) -> nn.Module:
    """A backbone in eval mode that has taken the weights of a file."""
    torch.save(weights, folder / 'weights.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(folder / 'weights.pth'))
    backbone = cls(*arguments, **options, init_cfg=init_cfg)
    backbone.init_weights()
    return backbone.eval()


def build(name: str, **options) -> nn.Module:
    """The small variant, with every parameter large enough to matter."""
    case = (VARIANTS | ABLATIONS)[name]
    options = dict(type=f'bioattn_mm.{name.split()[0]}', arch=case.arch) | case.options | options
    backbone = MODELS.build(options)
    for parameter_name, parameter in backbone.named_parameters():
        if parameter_name.endswith('gamma'):  # timm's layer scale of 1e-6 hides the blocks of GABViT
            nn.init.uniform_(parameter, 0.5, 1)
    return backbone
