"""Attention with a relative position bias against its formula, written out query by query."""

import itertools

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import relative_bias_attention
from bioattn_mm.ops.relative_bias import bias_of_pairs, bias_of_queries, bias_of_rows
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import needs_library

OPERATOR = OPERATORS['relative_bias_attention']
GRIDS = [(5, 7), (1, 1), (1, 9), (8, 1), (3, 2)]


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


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_equals_the_formula(grid: tuple[int, int], backend: str) -> None:
    inputs = OPERATOR.inputs(dict(grid=grid, heads=3), 'cpu', torch.float64)
    want = written_out(*inputs, scale=0.7)
    torch.testing.assert_close(relative_bias_attention(*inputs, 0.7, backend=backend), want)
    output = relative_bias_attention(*inputs, backend=backend)
    torch.testing.assert_close(output, relative_bias_attention(*inputs, 8**-0.5, backend=backend))


@needs_library
@pytest.mark.parametrize('channels', [8, 24, 5])
@pytest.mark.parametrize('grid', [*GRIDS, (9, 35)], ids=str)
def test_instructions_of_bfloat16(grid: tuple[int, int], channels: int) -> None:
    inputs = OPERATOR.inputs(dict(grid=grid, heads=3, channels=channels), 'cpu', torch.bfloat16)
    exact = OPERATOR.values_and_gradients([tensor.double() for tensor in inputs], 'cpu')
    for got, want, tensor in zip(OPERATOR.values_and_gradients(inputs, 'cpu'), exact, [inputs[0], *inputs]):
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        # Queries and weights are rounded to bfloat16, too. Where there is one key, nothing depends on them.
        scale = max(1, want.abs().max().item())
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-2 * scale)


def test_large_logits_and_offsets_without_weight(backend: str) -> None:
    query, *others, bias = OPERATOR.inputs(dict(grid=(25, 30), channels=2), 'cpu', torch.float32)
    # The offset 0 and all keys further down in the grid: the blocks of keys before a query have no weight at all.
    bias[:, 25:] = float('-inf')
    inputs = [query * 1e4, *others, bias]
    output = relative_bias_attention(*inputs, backend=backend)
    assert output.isfinite().all()
    exact = relative_bias_attention(*(tensor.double() for tensor in inputs), backend='reference')
    torch.testing.assert_close(output, exact.float(), atol=1e-2, rtol=0)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_bias_of_some_queries_and_rows(grid: tuple[int, int]) -> None:
    height, width = grid
    table, pairs = torch.randn(2, 2 * height - 1, 2 * width - 1), torch.empty(2, *grid, *grid)
    for i, j, u, v in itertools.product(*map(range, grid + grid)):
        pairs[:, i, j, u, v] = table[:, i - u + height - 1, j - v + width - 1]
    pairs, queries = pairs.flatten(3).flatten(1, 2), torch.tensor([0, height * width - 1])
    assert torch.equal(bias_of_pairs(table, grid), pairs)
    assert torch.equal(bias_of_queries(table, grid, queries), pairs[:, queries])
    assert torch.equal(bias_of_rows(table, grid, slice(1, 3)), pairs[:, width : 3 * width])
