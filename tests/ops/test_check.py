"""`python -m bioattn_mm.ops --check`, and what it compares the operators with."""

import inspect
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from bioattn_mm import ops
from bioattn_mm.ops import check, registration
from bioattn_mm.ops.__main__ import main
from bioattn_mm.ops.backends import LIBRARY_IS_LOADED
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.blocks import OF_BLOCKS
from tests.ops.conftest import IN_USE, needs_library


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    return exit.value.code


def test_report_of_what_was_built(capsys: pytest.CaptureFixture) -> None:
    main([])
    report = capsys.readouterr().out
    assert 'compiled operators: ' in report and re.search(r'^cpu: .*reference', report, re.MULTILINE)
    assert not LIBRARY_IS_LOADED or f'instruction set of the CPU operators: {IN_USE}' in report


def test_every_operator_is_checked() -> None:
    public = {name: value for name, value in vars(ops).items() if inspect.isfunction(value)}
    operators = {name for name, each in public.items() if 'backend' in inspect.signature(each).parameters}
    assert set(OPERATORS) == set(registration.OPERATORS) - set(OF_BLOCKS) == operators
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in OPERATORS if LIBRARY_IS_LOADED else ():
        assert ('cpu' in OPERATORS[name].dtypes) == has_kernel(f'bioattn_mm::{name}', 'CPU')


@pytest.mark.parametrize('any_order', [(), ('cpu',)])
def test_gradients_whose_sums_have_no_order(any_order: tuple[str, ...]) -> None:
    """As those of atomic additions on a GPU: the output must repeat, they need not."""

    def run(x: torch.Tensor, *others: torch.Tensor, backend: str) -> torch.Tensor:
        x.register_hook(lambda gradient: gradient * (1 + 1e-7 * torch.randint(3, gradient.shape)))
        return right.run(x, *others, backend='reference')

    right = OPERATORS['deformable_attention']
    operator = replace(right, run=run, any_order=any_order)
    agrees, cells = check.compare(operator, 'cpu', 'cpu', torch.float32, right.sizes[0])
    assert agrees == bool(any_order) and cells[-1] == ('yes' if any_order else '**no**')


@needs_library
@pytest.mark.parametrize('fault', [None, 'wrong', 'not the same twice', 'raises', 'wrong dtype'])
def test_a_difference_is_reported(fault: str | None, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    right = OPERATORS['log_cpb_table']

    def run(*inputs: torch.Tensor, backend: str) -> torch.Tensor:
        table = right.run(*inputs, backend=backend)
        if backend == 'reference' or not fault:
            return table
        if fault == 'raises':
            raise RuntimeError('no kernel image\nfor this device')
        if fault == 'wrong dtype':
            return table.double()
        return table * (1.001 if fault == 'wrong' else 1 + 1e-6 * torch.rand(()))

    small = replace(right, run=run, sizes=[dict(), dict(rows=1)], dtypes={'cpu': (torch.float32,)})
    monkeypatch.setitem(OPERATORS, 'log_cpb_table', small)
    assert exit_code('--check', '--device', 'cpu', '--operators', 'log_cpb_table') == bool(fault)
    report = capsys.readouterr().out
    assert report.count('| log_cpb_table | float32 |') == 2
    assert report.count('| **DIFFERENT** |') == 2 * bool(fault) and report.count('| yes | ok |') == 2 * (not fault)
    assert ('2 of 2 DIFFERENT' if fault else 'all 2 agree') in report
    assert ('| **no** |' in report) == (fault == 'not the same twice')
    assert ('RuntimeError: no kernel image |' in report) == (fault == 'raises')


@pytest.mark.parametrize('name', ['relative_bias_attention', 'peripheral_attention'])
def test_gradients_of_an_empty_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What PyTorch 2.15 returns of no elements does not depend on the arguments.
    monkeypatch.setattr(F, 'scaled_dot_product_attention', lambda query, *_, **__: torch.zeros_like(query))
    operator = OPERATORS[name]
    inputs = operator.inputs(dict(batch=0), 'cpu', torch.float32)
    results = operator.values_and_gradients(inputs, 'reference')
    torch.testing.assert_close(results, [torch.zeros_like(tensor) for tensor in (inputs[0], *inputs)])


def test_nothing_to_check(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    assert exit_code('--check', '--device', 'cuda') == 2
    assert 'nothing to check on cuda: PyTorch finds no GPU' in capsys.readouterr().err
    monkeypatch.setattr('bioattn_mm.ops.backends.WHY_NOT_LOADED', 'they were left out')
    assert exit_code('--check', '--device', 'cpu') == 2
    assert 'nothing to check on cpu: they were left out; to build them: ' in capsys.readouterr().err


def test_errors_count_infinity_and_nan() -> None:
    want = torch.tensor([1.0, 4.0, float('-inf')])
    assert check.relative_error(want.clone(), want) == 0
    assert check.relative_error(torch.tensor([1.0, 3.0, float('-inf')]), want) == 0.25
    assert check.relative_error(torch.tensor([1.0, 4.0, 0.0]), want) > 1e30
    assert check.relative_error(torch.tensor([1e-7]), torch.zeros(1)) == pytest.approx(1e-6)
    assert check.relative_error(torch.tensor([1.0, float('nan'), float('-inf')]), want) > 1e30
