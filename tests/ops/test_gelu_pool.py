"""GELU and pooling in one pass against PyTorch's operators."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from bioattn_mm.ops import gelu_pool
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import CAPABILITIES, capability, needs_library

Grid = tuple[int, int]
# Cells of the same size, of several sizes that overlap, as many as tokens, and more.
GRIDS = [((8, 12), (4, 3)), ((7, 10), (3, 4)), ((5, 3), (5, 3)), ((3, 4), (7, 5)), ((6, 9), (1, 1))]


@needs_library
@pytest.mark.parametrize('channels', [16, 17, 72])
@pytest.mark.parametrize(('grid', 'pooled_grid'), GRIDS, ids=str)
@pytest.mark.parametrize(
    ('dtype', 'tolerance'), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.bfloat16, 2**-8)], ids=str
)
def test_equals_pytorch_in_float64(
    grid: Grid, pooled_grid: Grid, channels: int, dtype: torch.dtype, tolerance: float
) -> None:
    operator = replace(OPERATORS['gelu_pool'], run=partial(gelu_pool, grid=pooled_grid))
    x = 2 * operator.inputs(dict(height=grid[0], width=grid[1], channels=channels), 'cpu', dtype)[0]
    exact = operator.values_and_gradients([x.double()], 'reference')
    for name in CAPABILITIES:
        with capability(name):
            results = operator.values_and_gradients([x], 'cpu')
        for got, want in zip(results, exact, strict=True):
            assert got.dtype == dtype and got.shape == want.shape
            torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * max(1, want.abs().max().item()))
