"""The formulas that benchmarks measure the systems against (benchmarks/formulas.py) compute what the systems do."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from tests.benchmark_scripts import names_of
from tests.systems.common.small_backbones import build

IMAGE, TOKENS = (1, 3, 75, 133), (1, 6, 9)  # tokens of as many channels as the layer takes
# A system, the shape of its input, and what builds a small backbone, or a layer of the script.
CASES = [
    ('transnext', IMAGE, lambda script: build('TransNeXt')),
    ('transnext', IMAGE, lambda script: build('TransNeXt', bias_mode='interpolate', img_size=96)),
    ('convit', IMAGE, lambda script: build('ConViT')),
    ('pervit', IMAGE, lambda script: build('PerViT')),
    ('gab', IMAGE, lambda script: build('GABViT')),
    ('transnext-stage-4', TOKENS, lambda script: script.transnext_layer('extrapolate')),
    ('transnext-stage-4', TOKENS, lambda script: script.transnext_layer('interpolate')),
    ('deformable', TOKENS, lambda script: script.DeformableLayer()),
]


@pytest.fixture(scope='module')
def script() -> SimpleNamespace:
    return names_of('against_formulas.py')


def test_all_systems(script: SimpleNamespace) -> None:
    assert {system for system, *_ in CASES} == set(script.written_out.__wrapped__.__globals__['FORMULAS'])


@pytest.mark.parametrize(('system', 'shape', 'make'), CASES)
def test_formula(system: str, shape: tuple[int, ...], make: Callable, script: SimpleNamespace) -> None:
    torch.manual_seed(0)
    module = make(script)
    for parameter in module.parameters():
        if not parameter.any():  # zeros would hide that one is left out
            torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(shape if shape == IMAGE else (*shape, module.proj.in_features))
    with torch.no_grad():
        ours = module.eval()(x)
        with script.written_out(system):
            theirs = module(x)
    with script.written_out(system):
        module.train()(x)  # with what is computed for all blocks at once
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
