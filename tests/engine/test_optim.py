"""Layer-wise learning rates of the optimizer constructor, those of the configs are in tests/configs; fused AdamW."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import nn

from bioattn_mm.errors import InputError


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
    groups = build_optim_wrapper(model_of(Backbone), CONFIG).optimizer.param_groups
    assert [group['lr'] for group in groups] == pytest.approx([0.0125, 1, 0.05, 0.1, 1])


def test_a_backbone_without_depths() -> None:
    with pytest.raises(InputError, match='needs a backbone with get_layer_depth, and Sequential has'):
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
