"""The configs of the papers' rows have the parameters and FLOPs that the papers print, to the last digit."""

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bioattn_mm.analysis.flops import count_multiply_adds
from bioattn_mm.analysis.model_stats import default_size
from bioattn_mm.systems.transnext import AggregatedAttention, LogCPB
from bioattn_mm.systems.transnext.ablations import PixelFocusedAttention
from bioattn_mm.systems.vars.attention import FourierKernels, RandomFeatures
from bioattn_mm.training.config.model_check import model_of
from tests.configs.reading import parse
from tests.needs import needs

from .printed import CONVIT, PERVIT, TRANSNEXT, VARS, WITH_PROJECTIONS

ROWS = [*TRANSNEXT, *PERVIT, *CONVIT, *VARS]
NORMS = (nn.LayerNorm, nn.BatchNorm2d)


def agrees(value: float, printed: str) -> bool:
    """Whether a number, rounded or cut off, has the digits of the paper: 28.26 stands there as 28.2."""
    digits = len(printed.partition('.')[2])
    cut_off = math.floor(value * 10**digits) / 10**digits
    return printed in (f'{value:.{digits}f}', f'{cut_off:.{digits}f}')


def parameters(model: nn.Module, name: str) -> float:
    """Millions, as the paper counts: ConViT's without the classifier, some of VARS's with fixed projections."""
    number = sum(parameter.numel() for parameter in model.parameters())
    if name.startswith('convit/'):
        number -= sum(parameter.numel() for parameter in model.head.parameters())
    if name.removeprefix('vars/') in WITH_PROJECTIONS:
        number += sum(m.projection.numel() for m in model.modules() if isinstance(m, RandomFeatures))
    return number / 1e6


def billions(network: nn.Module, image: Tensor, name: str) -> float:
    """Multiply-adds as the paper counts.

    TransNeXt: what fvcore counts of the authors' code, which is all products, both layers of log-CPB, 5 for each
    number that a norm gives, and 1 for each that is pooled. VARS: all products but those of Fourier transforms, which
    fvcore does not count. The others: layers alone, as modules, without the products of attention.
    """
    extra = []

    def count(kinds: type | tuple[type, ...], number: Callable[[nn.Module, Tensor], int]) -> None:
        for module in network.modules():
            if isinstance(module, kinds):
                module.register_forward_hook(lambda module, _, output: extra.append(number(module, output)))

    count(NORMS, lambda _, output: 5 * output.numel())
    count(AggregatedAttention, lambda _, output: output.numel())
    # The operator multiplies zeros in place of learnable tokens.
    count(PixelFocusedAttention, lambda module, output: -output.numel() * module.window_size**2)

    def of_first_layer(table: Tensor) -> Tensor:  # (heads, R, C)
        extra.append(2 * 512 * table.shape[1] * table.shape[2])
        return table

    for module in network.modules():
        if isinstance(module, LogCPB):  # called by its methods
            compute = module._table
            module._table = lambda *grids, compute=compute: of_first_layer(compute(*grids))
    counts = count_multiply_adds(network, image)
    if name.startswith('transnext/'):
        return (counts[''] + sum(extra)) / 1e9
    products = of_layers(network, counts)
    if name.startswith('vars/'):
        products = counts['']
        for place, module in network.named_modules():
            if isinstance(module, FourierKernels):
                products -= counts[place] - of_layers(module, counts, f'{place}.')
    return (products + sum(extra)) / 1e9


def of_layers(network: nn.Module, counts: dict[str, int], prefix: str = '') -> int:
    layers = (place for place, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d)))
    return sum(counts.get(prefix + place, 0) for place in layers)


@pytest.mark.parametrize(('place', 'name', 'wanted'), [row[:3] for row in ROWS if row[2]])
def test_parameters(place: str, name: str, wanted: str) -> None:
    config = parse(Path(f'configs/{name}.py'))
    number = parameters(model_of(config), name)
    assert agrees(number, wanted), (place, number)


@needs('operators')
@pytest.mark.parametrize(
    ('place', 'name', 'wanted'),
    [
        pytest.param(row[0], row[1], row[3], marks=pytest.mark.slow if number % 4 else ())
        for number, row in enumerate(ROWS)
        if row[3]
    ],
)
def test_flops(place: str, name: str, wanted: str) -> None:
    config = parse(Path(f'configs/{name}.py'))
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True):
        warnings.simplefilter('ignore')  # a cache asks tensors without data where their data is
        init_default_scope(config.default_scope)
        model = MODELS.build(deepcopy(config.model)).eval()
        measured = billions(model.backbone, torch.zeros(1, 3, *default_size(config)), name)
        measured += model.head.fc.weight.numel() / 1e9
    assert agrees(measured, wanted), (place, measured)
