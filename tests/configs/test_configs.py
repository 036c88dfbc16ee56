"""Every config: parses, builds, has the paper's size, and states only what differs."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/*/*.py') if '_base_' not in path.parts)

# Parameters in millions as the paper prints them (TransNeXt, table 5); they include the auxiliary head.
UPERNET_PARAMETERS = dict(tiny=59, small=80, base=121)


def build(config: Config) -> torch.nn.Module:
    init_default_scope(config.default_scope)
    with torch.device('meta'):
        return MODELS.build(config.model)


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_builds(path: Path) -> None:
    config = Config.fromfile(ROOT / path)
    model = build(config)
    assert tuple(config.model.decode_head.in_channels) == model.backbone.out_channels
    assert sum(p.numel() for p in model.parameters()) > 1e6


@pytest.mark.parametrize('variant', UPERNET_PARAMETERS)
def test_upernet_has_the_size_of_the_paper(variant: str) -> None:
    model = build(Config.fromfile(ROOT / f'configs/transnext/upernet_{variant}_ade20k.py'))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert round(parameters / 1e6) == UPERNET_PARAMETERS[variant]


def test_no_weight_decay_where_the_paper_has_none() -> None:
    config = Config.fromfile(ROOT / 'configs/transnext/upernet_tiny_ade20k.py')
    model = build(config)
    groups = build_optim_wrapper(model, config.optim_wrapper).optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {names[id(p)] for group in groups if group['weight_decay'] > 0 for p in group['params']}
    free = {names[id(p)] for group in groups if group['weight_decay'] == 0 for p in group['params']}
    assert len(decayed) + len(free) == len(names)
    block = 'backbone.stages.0.blocks.0'
    for name in ('scale.temperature', 'scale.query_embedding', 'window_bias', 'position_bias.fc1.weight'):
        assert f'{block}.attn.{name}' in free
    for name in ('norm1.weight', 'norm2.bias', 'attn.pool_norm.weight'):
        assert f'{block}.{name}' in free
    for name in ('attn.q.weight', 'attn.learnable_tokens', 'mlp.fc1.weight'):
        assert f'{block}.{name}' in decayed


def test_leaf_configs_repeat_nothing() -> None:
    """A leaf that restates a base's value would keep it when the base changes."""

    def leaves(node: dict, prefix: str = '') -> dict:
        flat = {}
        for key, value in node.items():
            flat.update(leaves(value, f'{prefix}{key}.') if isinstance(value, dict) else {prefix + key: value})
        return flat

    for path in CONFIGS:
        own = {}
        exec((ROOT / path).read_text(), {}, own)
        bases = own.pop('_base_')
        inherited = {}
        for base in [bases] if isinstance(bases, str) else bases:
            inherited.update(leaves(Config.fromfile(ROOT / path.parent / base).to_dict()))
        repeated = {key for key, value in leaves(own).items() if key in inherited and inherited[key] == value}
        assert not repeated, f'{path} repeats {repeated}'
