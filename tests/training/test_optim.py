"""Rates and groups of the optimizer's constructors, fused AdamW; the rates of the configs are in tests/configs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import nn
from torch._subclasses import FakeTensorMode

from bioattn_mm.training.runner import use_fused_optimizer


class Backbone(nn.Sequential):
    """A stem, two blocks and a final layer."""

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        return int(param_name.removeprefix(prefix).split('.')[0]), 4


def model_of(kind: type[nn.Module]) -> nn.Module:
    model = nn.Module()
    model.backbone = kind(*(nn.Linear(1, 1, bias=False) for _ in range(4)))
    model.head = nn.Linear(1, 1, bias=False)
    return model


CONFIG = dict(
    constructor='bioattn_mm.CombinedRulesConstructor',
    optimizer=dict(type='SGD', lr=1.0),
    paramwise_cfg=dict(layer_decay_rate=0.5, custom_keys=dict(backbone=dict(lr_mult=0.1)), new_parameters=['.1.']),
)


def test_rates_by_depth() -> None:
    model = model_of(Backbone)
    groups = build_optim_wrapper(model, CONFIG).optimizer.param_groups
    rates = {id(parameter): group['lr'] for group in groups for parameter in group['params']}
    assert [rates[id(parameter)] for parameter in model.parameters()] == pytest.approx([0.0125, 1, 0.05, 0.1, 1])
    assert len(groups) == 4  # the new parameter has the rate of the head


def test_weight_decays_are_multiplied() -> None:
    keys = {'backbone': dict(decay_mult=0.5), '.1.': dict(decay_mult=0.2), '.3.': dict(decay_mult=2)}
    model, optimizer = model_of(Backbone), dict(type='SGD', lr=1.0, weight_decay=0.1)
    config = dict(CONFIG, optimizer=optimizer, paramwise_cfg=dict(custom_keys=keys))
    groups = build_optim_wrapper(model, config).optimizer.param_groups
    decays = {id(parameter): group['weight_decay'] for group in groups for parameter in group['params']}
    assert [decays[id(p)] for p in model.parameters()] == pytest.approx([0.05, 0.01, 0.05, 0.1, 0.1])
    assert len(groups) == 3  # the optimizer's own decay, stated or not, is one


def test_a_backbone_without_depths() -> None:
    with pytest.raises(AttributeError, match='get_layer_depth'):
        build_optim_wrapper(model_of(nn.Sequential), CONFIG)


def test_fused_adamw_makes_the_same_update(root: Path) -> None:
    wrapper = Config.fromfile(root / 'configs/_base_/schedules/adamw_160k.py').optim_wrapper
    assert wrapper.optimizer.fused
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(30, 20)
        wrapper.optimizer.update(fused=fused, lr=0.1)
        optimizer = build_optim_wrapper(model, wrapper)
        for _ in range(10):
            optimizer.update_params(model(torch.randn(5, 30)).square().mean())
        results.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.allclose(*results, rtol=1e-5, atol=1e-6)


ADAMW = dict(
    optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys={'2.': dict(lr_mult=0.5)}),
)


def trained(constructor: str) -> tuple[nn.Module, OptimWrapper]:
    """A model after ten steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    model[4].weight.requires_grad = False
    optimizer = build_optim_wrapper(model, dict(ADAMW, constructor=constructor))
    for _ in range(10):
        optimizer.update_params(model(torch.randn(5, 8)).square().mean())
    return model, optimizer


def test_merged_groups_make_the_same_update() -> None:
    separate_model, separate = trained('DefaultOptimWrapperConstructor')
    merged_model, merged = trained('bioattn_mm.MergedGroupsConstructor')
    assert (len(separate.optimizer.param_groups), len(merged.optimizer.param_groups)) == (9, 3)
    for name, parameter in merged_model.named_parameters():
        assert torch.equal(parameter, separate_model.get_parameter(name)), name


def test_a_state_of_other_groups_is_refused() -> None:
    _, separate = trained('DefaultOptimWrapperConstructor')
    _, merged = trained('bioattn_mm.MergedGroupsConstructor')
    merged.load_state_dict(merged.state_dict())
    with pytest.raises(ValueError, match='different number of parameter groups'):
        merged.load_state_dict(separate.state_dict())


@pytest.mark.parametrize(
    ('optimizer', 'device', 'fused'),
    [
        (dict(type='AdamW'), 'cuda', True),
        (dict(type=torch.optim.AdamW), 'cuda', True),
        (dict(type='AdamW'), 'cpu', None),
        (dict(type='AdamW', fused=False), 'cuda', False),
        (dict(type='AdamW', foreach=True), 'cuda', None),
        (dict(type='SGD', lr=0.1), 'cuda', None),
    ],
    ids=str,
)
def test_adamw_is_fused_on_a_gpu_where_the_config_says_nothing(optimizer: dict, device: str, fused: bool) -> None:
    with FakeTensorMode():  # of a GPU that need not be there
        model = nn.Linear(2, 2, device=device)
    config = ConfigDict(optimizer=optimizer)
    runner = SimpleNamespace(model=model, optim_wrapper=config)
    use_fused_optimizer(runner)
    assert config == dict(optimizer=optimizer)  # as it is written to the work dir
    built = build_optim_wrapper(nn.Linear(2, 2), runner.optim_wrapper)
    assert built.optimizer.param_groups[0]['fused'] == fused
