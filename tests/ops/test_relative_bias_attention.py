"""Attention with a relative position bias against its formula, written out query by query."""

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import relative_bias_attention
from bioattn_mm.ops.relative_bias import bias_of_pairs, bias_of_queries, bias_of_rows
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import needs_library

Grid = tuple[int, int]
GRIDS = [(5, 7), (1, 1), (1, 9), (8, 1), (3, 2)]


def make_arguments(
    grid: Grid = (5, 7), batch: int = 2, heads: int = 3, channels: int = 8, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Query, key, value and bias. The first three lie side by side, as a projection gives them."""
    tokens = torch.randn(batch, *grid, 3, heads, channels, dtype=dtype)
    table = torch.randn(heads, *(2 * length - 1 for length in grid), dtype=torch.promote_types(dtype, torch.float32))
    return [*tokens.unbind(3), table]


def written_out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """One query at a time."""
    output = torch.empty_like(query)
    height, width, heads = query.shape[1:4]
    for b, i, j, h in torch.cartesian_prod(*map(torch.arange, (len(query), height, width, heads))).tolist():
        logits = [
            scale * query[b, i, j, h] @ key[b, u, v, h] + bias[h, i - u + height - 1, j - v + width - 1]
            for u in range(height)
            for v in range(width)
        ]
        output[b, i, j, h] = torch.stack(logits).softmax(0) @ value[b, :, :, h].flatten(0, 1)
    return output


def gradients(inputs: list[Tensor], backend: str) -> list[Tensor]:
    """Output and gradients of the operator."""
    return OPERATORS['relative_bias_attention'].values_and_gradients(inputs, backend)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_equals_the_formula(grid: Grid, backend: str) -> None:
    arguments = make_arguments(grid)
    want = written_out(*arguments, scale=0.7)
    torch.testing.assert_close(relative_bias_attention(*arguments, 0.7, backend=backend), want)
    output = relative_bias_attention(*arguments, backend=backend)
    torch.testing.assert_close(output, relative_bias_attention(*arguments, 8**-0.5, backend=backend))


@needs_library
@pytest.mark.parametrize('channels', [8, 24, 5])
@pytest.mark.parametrize('grid', [*GRIDS, (9, 35)], ids=str)
def test_instructions_of_bfloat16(grid: Grid, channels: int) -> None:
    inputs = make_arguments(grid, channels=channels, dtype=torch.bfloat16)
    exact = gradients([tensor.double() for tensor in inputs], 'cpu')
    for got, want, tensor in zip(gradients(inputs, 'cpu'), exact, [inputs[0], *inputs]):
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        # Queries and weights are rounded to bfloat16, too. Where there is one key, nothing depends on them.
        scale = max(1, want.abs().max().item())
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-2 * scale)


def test_large_logits_and_offsets_without_weight(backend: str) -> None:
    query, key, value, bias = make_arguments((25, 30), channels=2, dtype=torch.float32)
    query *= 1e4
    # The offset 0 and all keys further down in the grid: the blocks of keys before a query have no weight at all.
    bias[:, 25:] = float('-inf')
    output = relative_bias_attention(query, key, value, bias, backend=backend)
    assert output.isfinite().all()
    exact = [tensor.double() for tensor in (query, key, value, bias)]
    torch.testing.assert_close(
        output, relative_bias_attention(*exact, backend='reference').float(), atol=1e-2, rtol=0
    )


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_pairs_of_a_table(grid: Grid) -> None:
    height, width = grid
    table = torch.randn(2, 2 * height - 1, 2 * width - 1)
    rows, columns = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, grid), indexing='ij'))
    row, column = rows[:, None] - rows + height - 1, columns[:, None] - columns + width - 1  # query - key
    pairs = bias_of_pairs(table, grid)
    assert torch.equal(pairs, table[:, row, column])
    queries = torch.tensor([0, height * width - 1])
    assert torch.equal(bias_of_queries(table, grid, queries), pairs[:, queries])
    assert torch.equal(bias_of_rows(table, grid, slice(1, 3)), pairs[:, width : 3 * width])
