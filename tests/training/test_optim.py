"""Rates and groups of the optimizer's constructors; the rates of the configs are in tests/configs."""

import pytest
import torch
from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import nn


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


def settings_of(model: nn.Module, config: dict, name: str) -> tuple[list[float], int]:
    """The value of each parameter's group, and the number of groups."""
    groups = build_optim_wrapper(model, config).optimizer.param_groups
    values = {id(parameter): group[name] for group in groups for parameter in group['params']}
    return [values[id(parameter)] for parameter in model.parameters()], len(groups)


def test_rates_by_depth_and_weight_decays_are_multiplied() -> None:
    rates, groups = settings_of(model_of(Backbone), CONFIG, 'lr')
    assert rates == pytest.approx([0.0125, 1, 0.05, 0.1, 1]) and groups == 4  # the new one has the rate of the head
    with pytest.raises(AttributeError, match='get_layer_depth'):
        settings_of(model_of(nn.Sequential), CONFIG, 'lr')

    keys = {'backbone': dict(decay_mult=0.5), '.1.': dict(decay_mult=0.2), '.3.': dict(decay_mult=2)}
    optimizer = dict(type='SGD', lr=1.0, weight_decay=0.1)
    config = dict(CONFIG, optimizer=optimizer, paramwise_cfg=dict(custom_keys=keys))
    decays, groups = settings_of(model_of(Backbone), config, 'weight_decay')
    # The optimizer's own decay, stated or not, is one.
    assert decays == pytest.approx([0.05, 0.01, 0.05, 0.1, 0.1]) and groups == 3


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


def test_merged_groups_make_the_same_update_and_refuse_a_state_of_others() -> None:
    separate_model, separate = trained('DefaultOptimWrapperConstructor')
    merged_model, merged = trained('bioattn_mm.MergedGroupsConstructor')
    assert (len(separate.optimizer.param_groups), len(merged.optimizer.param_groups)) == (9, 3)
    for name, parameter in merged_model.named_parameters():
        assert torch.equal(parameter, separate_model.get_parameter(name)), name
    merged.load_state_dict(merged.state_dict())
    with pytest.raises(ValueError, match='different number of parameter groups'):
        merged.load_state_dict(separate.state_dict())
