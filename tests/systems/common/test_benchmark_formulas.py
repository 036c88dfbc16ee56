"""The formulas that benchmarks measure the systems against (benchmarks/formulas.py) compute what the systems do."""

import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from .small_backbones import build

BENCHMARKS = Path(__file__).parents[3] / 'benchmarks'
IMAGE, TOKENS = (1, 3, 75, 133), (1, 6, 9)
# A system, the shape of its input, and what builds it: of the script, or a small backbone.
CASES = [
    *(
        ('transnext', IMAGE, partial(build, 'TransNeXt', **options))
        for options in ({}, dict(bias_mode='interpolate', img_size=96))
    ),
    ('convit', IMAGE, partial(build, 'ConViT')),
    ('pervit', IMAGE, partial(build, 'PerViT')),
    ('gab', IMAGE, partial(build, 'GABViT')),
    ('transnext-stage-4', TOKENS, 'extrapolate'),
    ('transnext-stage-4', TOKENS, 'interpolate'),
    ('deformable', TOKENS, None),
]


@pytest.fixture(scope='module')
def script() -> SimpleNamespace:
    """The names of benchmarks/against_formulas.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / 'against_formulas.py')))


def test_all_systems(script: SimpleNamespace) -> None:
    assert {system for system, *_ in CASES} == set(script.written_out.__wrapped__.__globals__['FORMULAS'])


@pytest.mark.parametrize(('system', 'shape', 'make'), CASES)
def test_formula(system: str, shape: tuple[int, ...], make: object, script: SimpleNamespace) -> None:
    torch.manual_seed(0)
    if callable(make):
        module = make()
    else:
        module = script.transnext_layer(make) if make else script.DeformableLayer()
        shape = (*shape, module.proj.in_features)
    for parameter in module.parameters():
        if not parameter.any():  # zeros would hide that one is left out
            torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(shape)
    with torch.no_grad():
        ours = module.eval()(x)
        with script.written_out(system):
            theirs = module(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
