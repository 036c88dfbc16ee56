"""Small variants of all backbones, and what is expected of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bioattn_mm.registry import MODELS
from bioattn_mm.systems.vars.backbone import ATTENTIONS


@dataclass
class Case:
    """A small variant of a backbone, and what is expected of it."""

    arch: dict
    strides: tuple[int, ...]
    out_channels: tuple[int, ...]
    num_stages: int
    blocks: int
    options: dict = field(default_factory=dict)


PLAIN = dict(strides=(16,) * 4, num_stages=12, blocks=12)
PYRAMID = dict(strides=(4, 8, 16, 32), num_stages=4)
CASES = dict(
    TransNeXt=Case(
        dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 2, 1)),
        out_channels=(8, 16, 24, 32),
        blocks=5,
        **PYRAMID,
    ),
    GABSwin=Case(
        dict(embed_dims=16, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8)),
        out_channels=(16, 32, 64, 128),
        blocks=8,
        **PYRAMID,
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
# By the name of the class and what differs from `CASES`: grids and bias of TransNeXt, host and attention of VARS.
VARIANTS = CASES | {
    'TransNeXt A-A-A-A': replace(CASES['TransNeXt'], arch={**CASES['TransNeXt'].arch, 'sr_ratios': (16, 8, 4, 2)}),
    'TransNeXt interpolated': replace(CASES['TransNeXt'], options=dict(bias_mode='interpolate', img_size=64)),
    'TransNeXt pooled to 2 x 3': replace(CASES['TransNeXt'], options=dict(pool_size=(2, 3))),
    **{
        f'VARS rvt {attention}': Case(RVT, (16, 32), (8, 16), 12, 12, dict(attention=attention))
        for attention in ATTENTIONS
    },
    **{
        f'VARS {block} {attention}': replace(
            CASES['VARS'], arch={**CASES['VARS'].arch, 'block': block}, options=dict(attention=attention)
        )
        for block, attention in (('deit', 'vars_sd'), ('gfnet', 'global_filter'), ('gfnet', 'vars_s'))
    },
}
# The attentions of the release of VARS by its names.
VARS_NAMES = {'self-att': 'softmax', 'perf': 'performer'} | {name: name for name in ('vars_s', 'vars_d', 'vars_sd')}
every_backbone = pytest.mark.parametrize('name', CASES)
every_variant = pytest.mark.parametrize('name', VARIANTS)
plain_variant = pytest.mark.parametrize('name', [name for name, case in VARIANTS.items() if case.num_stages == 12])


def loaded(cls: type[nn.Module], weights: object, folder: Path, *arguments: object, **options: object) -> nn.Module:
    """A backbone in eval mode that has taken the weights of a file."""
    torch.save(weights, folder / 'weights.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(folder / 'weights.pth'))
    backbone = cls(*arguments, **options, init_cfg=init_cfg)
    backbone.init_weights()
    return backbone.eval()


def build(name: str, **options) -> nn.Module:
    """The small variant, with every parameter large enough to matter."""
    case = VARIANTS[name]
    options = dict(type=f'bioattn_mm.{name.split()[0]}', arch=case.arch) | case.options | options
    backbone = MODELS.build(options)
    for parameter_name, parameter in backbone.named_parameters():
        if parameter_name.endswith('gamma'):  # timm's layer scale of 1e-6 hides the blocks of GABViT
            nn.init.uniform_(parameter, 0.5, 1)
    return backbone
