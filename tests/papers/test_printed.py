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

IN1K, CIFAR = '_8xb128_in1k', '_8xb128_cifar100'


# Table and row, config, parameters in millions and FLOPs in billions, with the digits of the paper; None where it has
# none, or the row cannot have them, which `docs/papers` explains.
def rows(system: str, *rows: tuple[str, str, str | None, str | None]) -> list[tuple]:
    return [(place, f'{system}/{config}', parameters, flops) for place, config, parameters, flops in rows]


ROWS = rows(
    'transnext',
    ('table 1, micro', f'transnext-micro{IN1K}', '12.8', '2.7'),
    ('table 1, tiny', f'transnext-tiny{IN1K}', '28.2', '5.7'),
    ('table 1, small', f'transnext-small{IN1K}', '49.7', '10.3'),
    ('table 1, base', f'transnext-base{IN1K}', '89.7', '18.4'),
    ('table 1, small at 384', f'transnext-small{IN1K}-384px', '49.7', '32.1'),
    ('table 1, base at 384', f'transnext-base{IN1K}-384px', '89.7', '56.3'),
    ('table 2, step 1', f'ablations/pvt-v2-b1{IN1K}', '14.0', '2.1'),
    ('table 2, step 2', f'ablations/pvt-v2-deeper{IN1K}', '14.9', '2.3'),
    ('table 2, step 3', f'ablations/pvt-v2-more-heads{IN1K}', '14.9', '2.3'),
    ('table 2, step 4', f'ablations/pvt-v2-glu{IN1K}', '14.8', '2.2'),
    ('table 2, step 5', f'ablations/pvt-v2-conv-glu{IN1K}', '14.9', '2.2'),
    ('table 2, step 6, and section 4.2', f'ablations/transnext-micro-pixel-focused{IN1K}', '12.78', '2.7'),
    ('table 2, step 7', f'ablations/transnext-micro-without-query-embedding{IN1K}', '12.8', '2.7'),
    ('table 2, step 8, and section 4.2', f'transnext-micro{IN1K}', '12.81', '2.66'),
    ('table 6, row 1', f'ablations/transnext-tiny-without-position-bias{IN1K}', '28.1', '5.6'),
    ('table 6, row 2', f'ablations/transnext-tiny-log-cpb-of-both{IN1K}', '28.2', '5.7'),
    ('table 6, row 3', f'ablations/transnext-tiny-dynamic-bias{IN1K}', '28.2', '5.7'),
    ('table 6, row 4', f'ablations/transnext-tiny-relative-position-bias{IN1K}', '28.1', '5.6'),
    ('table 7, ConvGLU, and table 8, 3 x 3', f'ablations/transnext-2m{CIFAR}', '2.3', '0.50'),
    ('table 7, type 1', f'ablations/transnext-2m-type-1{CIFAR}', '2.3', '0.5'),
    ('table 7, type 2', f'ablations/transnext-2m-type-2{CIFAR}', '2.3', '0.5'),
    ('table 7, type 3', f'ablations/transnext-2m-type-3{CIFAR}', '2.3', '0.5'),
    ('table 8, 5 x 5', f'ablations/transnext-2m-window-5{CIFAR}', '2.3', '0.52'),
    ('table 8, 7 x 7', f'ablations/transnext-2m-window-7{CIFAR}', '2.3', '0.54'),
    ('table 8, 9 x 9', f'ablations/transnext-2m-window-9{CIFAR}', '2.3', '0.57'),
    ('table 9, A-A-M-M', f'ablations/transnext-micro-aamm{IN1K}', '12.2', '2.7'),
    ('table 9, A-M-M-M', f'ablations/transnext-micro-ammm{IN1K}', '12.2', '2.9'),
    ('table 9, M-M-M-M', f'ablations/transnext-micro-mmmm{IN1K}', '12.2', '4.7'),
    ('table 9, A-A-A-A', f'transnext-micro-aaaa{IN1K}-256px', '13.1', '3.3'),
)
ROWS += rows(
    'pervit',
    ('table 1, a, and table 6', f'pervit-tiny{IN1K}', '7.6', '1.6'),
    ('table 1, b', f'ablations/pervit-tiny-content-alone{IN1K}', None, '1.6'),
    ('table 1, c', f'ablations/pervit-tiny-position-alone{IN1K}', None, '1.6'),
    ('table 1, d', f'ablations/pervit-tiny-without-conv-stem{IN1K}', None, '1.5'),
    ('table 1, e', f'ablations/pervit-tiny-without-cpe{IN1K}', None, '1.6'),
    ('table 1, f', f'ablations/pervit-tiny-cpe-alone{IN1K}', None, '1.5'),
    ('table 1, g', f'ablations/pervit-tiny-conv-stem-alone{IN1K}', None, '1.6'),
    ('table 1, h', f'ablations/pervit-tiny-without-conv-stem-and-cpe{IN1K}', None, '1.5'),
    ('table 1, i', f'ablations/pervit-tiny-plain{IN1K}', None, '1.5'),
    ('table 2, + PPE', f'ablations/deit-tiny-peripheral{IN1K}', None, '1.1'),
    ('table 6, small', f'pervit-small{IN1K}', '21', '4.4'),
    ('table 6, medium', f'pervit-medium{IN1K}', '44', '9.0'),
    ('table 6, DeiT-T', f'ablations/deit-tiny{IN1K}', '5.7', None),
    ('table 6, DeiT-S', f'ablations/deit-small{IN1K}', '22', None),
)
ROWS += rows(
    'convit',
    ('table 1, Ti, DeiT', f'ablations/deit-tiny-cls{IN1K}', '6', '1'),
    ('table 1, Ti', f'convit-tiny{IN1K}', '6', '1'),
    ('table 1, Ti+, DeiT', 'ablations/deit-tiny-plus-cls_8xb64_in1k', '10', '2'),
    ('table 1, Ti+', 'convit-tiny-plus_8xb64_in1k', '10', '2'),
    ('table 1, S, DeiT', f'ablations/deit-small-cls{IN1K}', '22', '4.3'),
    ('table 1, S', f'convit-small{IN1K}', '27', None),
    ('table 1, S+, DeiT', 'ablations/convit-small-plus-without-gpsa_8xb64_in1k', '48', '10'),
    ('table 1, S+', 'convit-small-plus_8xb64_in1k', '48', None),
    ('table 1, B, DeiT', f'ablations/deit-base-cls{IN1K}', '86', '17'),
    ('table 1, B', f'convit-base{IN1K}', '86', '17'),
    ('table 1, B+, DeiT', 'ablations/deit-base-plus-cls_8xb64_in1k', '152', '30'),
    ('table 1, B+', 'convit-base-plus_8xb64_in1k', '152', '30'),
)

# `docs/papers/vars.md` says what the row without parameters lacks.
ROWS += rows(
    'vars',
    ('table 2, RVT', f'rvt-tiny-softmax{IN1K}', '8.6', '1.3'),
    ('table 2, DeiT*', f'ablations/deit-tiny-performer{IN1K}', '5.7', None),
    ('table 2, DeiT*, S', f'ablations/deit-tiny-vars-s-3-kernels{IN1K}', '6.8', '1.0'),
    ('table 2, DeiT*, D', f'ablations/deit-tiny-ista-d{IN1K}', '5.4', None),
    ('table 2, DeiT*, SD', f'ablations/deit-tiny-ista-sd{IN1K}', '5.8', '1.4'),
    ('table 2, GFNet-Ti*', f'gfnet-tiny-filter{IN1K}', '7.5', '1.3'),
    ('table 2, GFNet-Ti*, S', f'ablations/gfnet-tiny-vars-s-1-kernel{IN1K}', '7.5', '1.3'),
    ('table 2, GFNet-Ti*, D', f'gfnet-tiny-vars-d{IN1K}', None, '1.9'),
    ('table 2, GFNet-Ti*, SD', f'gfnet-tiny-vars-sd{IN1K}', '10.4', None),
    ('table 2, RVT*', f'rvt-tiny-performer{IN1K}', '8.6', None),
    ('table 2, RVT*, S', f'ablations/rvt-tiny-vars-s-3-kernels{IN1K}', '9.2', '1.0'),
    ('table 2, RVT*, D', f'rvt-tiny-vars-d{IN1K}', '8.0', None),
    ('table 2, RVT*, SD', f'rvt-tiny-vars-sd{IN1K}', '9.2', None),
)


def agrees(value: float, printed: str) -> bool:
    """Whether a number, rounded or cut off, has the digits of the paper: 28.26 stands there as 28.2."""
    digits = len(printed.partition('.')[2])
    cut_off = math.floor(value * 10**digits) / 10**digits
    return printed in (f'{value:.{digits}f}', f'{cut_off:.{digits}f}')


def parameters(model: nn.Module, name: str) -> float:
    """Millions, as the paper counts: ConViT's without the classifier, three of VARS's with fixed projections."""
    number = sum(parameter.numel() for parameter in model.parameters())
    if name.startswith('convit/'):
        number -= sum(parameter.numel() for parameter in model.head.parameters())
    if 'deit-tiny-ista' in name or 'rvt-tiny-vars-sd' in name:
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

    count((nn.LayerNorm, nn.BatchNorm2d), lambda _, output: 5 * output.numel())
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
