"""The CPU operators with each instruction set that this processor runs."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from bioattn_mm.ops.check import check
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import CAPABILITIES, IN_USE, OF_BFLOAT16, capability, needs_library

pytestmark = needs_library


@pytest.mark.parametrize('name', CAPABILITIES[:-1])  # all other tests run with the last
def test_operators_compute_what_they_should(name: str, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    for operator, row in OPERATORS.items():
        dtypes = row.dtypes.get('cpu', ())
        if name in OF_BFLOAT16:  # the others are those of AVX-512
            dtypes = {torch.bfloat16} & set(dtypes)
        sizes = [each for each in row.sizes if math.prod(each.get('grid', ())) < 1000]  # the largest are for GPUs
        monkeypatch.setitem(OPERATORS, operator, replace(row, sizes=sizes, dtypes=dict(cpu=dtypes)))
    with capability(name):
        assert check('cpu', list(OPERATORS)), capsys.readouterr().out
    assert torch.ops.bioattn_mm.cpu_capability() == IN_USE
    with pytest.raises(ValueError, match='does not run avx1024; expected one of default'):
        torch.ops.bioattn_mm.set_cpu_capability('avx1024')


@pytest.mark.parametrize('name', [name for name in CAPABILITIES if name in ('default', 'avx512')])
def test_environment_variable_of_pytorch_counts(name: str) -> None:
    code = 'import torch; from bioattn_mm.ops import backends; print(torch.ops.bioattn_mm.cpu_capability())'
    process = subprocess.run(
        [sys.executable, '-c', code], env=os.environ | {'ATEN_CPU_CAPABILITY': name}, capture_output=True, text=True
    )
    best = torch.ops.bioattn_mm.cpu_capabilities()[-1] if name == 'avx512' else name
    assert process.stdout.split() == [best], process.stderr


@pytest.mark.parametrize('name', [name for name in CAPABILITIES if name in OF_BFLOAT16])
@pytest.mark.parametrize(
    'sizes',
    # Four groups of queries, and odd numbers of them, are summed at once; tiles are whole or a part.
    [
        dict(grid=(17, 33), heads=3, channels=24, pooled_grid=(7, 5)),
        dict(grid=(5, 7), heads=1, channels=32, pooled_grid=(3, 3)),
        dict(grid=(33, 20), heads=2, channels=40, pooled_grid=(9, 4)),
        dict(grid=(9, 13), heads=2, channels=8, pooled_grid=(1, 1)),
        dict(grid=(3, 16), heads=1, channels=64, pooled_grid=(8, 8)),
    ],
)
def test_bfloat16_is_float32_rounded(name: str, sizes: dict) -> None:
    operator = OPERATORS['cosine_attention']
    inputs = operator.inputs(sizes, 'cpu', torch.bfloat16)
    inputs[0][0, 0, 0, 0, 0] = math.nan  # what is NaN in the first image does not get into the second
    with capability(name):
        results = operator.values_and_gradients(inputs, 'cpu')
    full = [each.float() if each.dtype == torch.bfloat16 else each for each in inputs]
    wanted = operator.values_and_gradients(full, 'cpu')
    for got, want in zip(results, wanted, strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        got, want = got.nan_to_num().float(), want.nan_to_num()
        torch.testing.assert_close(got, want, rtol=0, atol=0.01 * want.abs().max().item())
