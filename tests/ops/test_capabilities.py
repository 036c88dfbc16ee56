"""The CPU operators with each instruction set that this processor runs."""

import os
import subprocess
import sys

import pytest
import torch

from bioattn_mm.ops.__main__ import print_what_was_built
from bioattn_mm.ops.check import check
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import CAPABILITIES, IN_USE, capability, needs_library

pytestmark = needs_library


@pytest.mark.parametrize('name', ['default', 'avx2', 'avx512'])
def test_operators_compute_what_they_should(name: str, capsys: pytest.CaptureFixture) -> None:
    if name not in CAPABILITIES[:-1]:
        pytest.skip(f'{name} is not below what is in use, {IN_USE}, with which all other tests run')
    with capability(name):
        assert check('cpu', list(OPERATORS)), capsys.readouterr().out
    assert torch.ops.bioattn_mm.cpu_capability() == IN_USE


@pytest.mark.parametrize('name', ['default', 'avx2', 'avx512'])
def test_environment_variable_of_pytorch_counts(name: str) -> None:
    if name not in CAPABILITIES:
        pytest.skip(f'{name} is above what is in use, {IN_USE}')
    code = 'import torch; from bioattn_mm.ops import backends; print(torch.ops.bioattn_mm.cpu_capability())'
    process = subprocess.run(
        [sys.executable, '-c', code], env=os.environ | {'ATEN_CPU_CAPABILITY': name}, capture_output=True, text=True
    )
    best = IN_USE if name == 'avx512' else name
    assert process.stdout.split() == [best], process.stderr


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match='does not run avx1024; expected one of default'):
        torch.ops.bioattn_mm.set_cpu_capability('avx1024')


def test_what_is_in_use_is_printed(capsys: pytest.CaptureFixture) -> None:
    print_what_was_built()
    assert f'instruction set of the CPU operators: {IN_USE}' in capsys.readouterr().out
