"""The log-spaced position bias against its definition over all pairs."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import prune

from bioattn_mm.systems.transnext import LogCPB
from bioattn_mm.systems.transnext.position_bias import _offset_index, doubled_centres, offsets_of_grid
from tests.needs import needs

Grid = tuple[int, int]


def bias_of_all_pairs(layer: LogCPB, grid: Grid, pooled_grid: Grid) -> torch.Tensor:
    """The bias by its definition, with the MLP on the coordinates of all pairs: (heads, H, W, Ph, Pw)."""
    coordinates = []
    for axis in (0, 1):
        query = torch.arange(grid[axis], dtype=torch.float64)
        pooled = F.adaptive_avg_pool1d(query[None], pooled_grid[axis])[0]
        offset = (query[:, None] - pooled) / (layer.pretrain_grid[axis] - 1) * 8
        coordinates.append(offset.sign() * torch.log2(offset.abs() + 1) / math.log2(8))
    vertical, horizontal = coordinates
    pairs = torch.broadcast_tensors(vertical[:, None, :, None], horizontal[None, :, None, :])
    return layer.fc2(F.relu(layer.fc1(torch.stack(pairs, -1).to(layer.fc1.weight.dtype)))).movedim(-1, 0)


def expand(bias: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The output of the layer, expanded to all pairs: (heads, H, W, Ph, Pw)."""
    return bias[:, rows].permute(0, 1, 3, 2, 4)


GRIDS = [
    ((8, 8), (1, 1)),
    ((16, 24), (2, 3)),
    ((13, 17), (6, 8)),  # cells of different sizes
    ((7, 9), (7, 9)),  # stage 4: every cell is one token
    ((2, 3), (7, 7)),  # linear mode on a small image: more cells than tokens
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize('length', [int, torch.tensor], ids=['numbers', 'traced by torch.jit'])
@pytest.mark.parametrize(('grid', 'pooled_grid'), GRIDS)
def test_extrapolated_bias_equals_the_definition(grid: Grid, pooled_grid: Grid, length: Callable) -> None:
    layer = LogCPB(num_heads=3, pretrain_grid=(14, 12)).double()
    bias, rows = layer(*(tuple(map(length, each)) for each in (grid, pooled_grid)))
    torch.testing.assert_close(expand(bias, rows), bias_of_all_pairs(layer, grid, pooled_grid))


@pytest.mark.parametrize('grid', [(8, 12), (5, 9), (6, 6)])
def test_interpolated_bias_resizes_keys_then_queries(grid: Grid) -> None:
    pooled_grid = (grid[0] // 2, grid[1] // 2)
    layer = LogCPB(2, (7, 7), 'interpolate', train_grid=(6, 6), train_pooled_grid=(3, 3)).double()
    want = bias_of_all_pairs(layer, (6, 6), (3, 3)).flatten(1, 2)  # (heads, N, Ph, Pw)
    want = F.interpolate(want, pooled_grid, mode='bilinear').flatten(2).transpose(1, 2)
    want = F.interpolate(want.unflatten(2, (6, 6)), grid, mode='bilinear')  # (heads, P, H, W)
    want = want.unflatten(1, pooled_grid).permute(0, 3, 4, 1, 2)
    torch.testing.assert_close(expand(*layer(grid, pooled_grid)), want)


def test_half_precision_weights_give_a_float32_bias() -> None:
    layer = LogCPB(2, (14, 14))
    exact, _ = layer((8, 8), (2, 2))
    with torch.autocast('cpu', torch.bfloat16):
        autocast, _ = layer((8, 8), (2, 2))
    assert autocast.dtype == torch.float32
    torch.testing.assert_close(autocast, exact)
    assert layer.half()((8, 8), (2, 2))[0].dtype == torch.float32


@torch.no_grad()
def test_kept_for_each_size_in_eval_mode_until_it_is_trained() -> None:
    layer, grids = LogCPB(2, (14, 14)).eval(), ((8, 8), (2, 2))
    first, other = layer.table(*grids)[0], layer.table((12, 8), (3, 2))[0]
    assert layer.table(*grids)[0] is first and layer.table((12, 8), (3, 2))[0] is other
    assert layer.train().training
    layer.fc2.weight.data.mul_(2)
    bias = expand(*layer.eval()(*grids))
    torch.testing.assert_close(bias, bias_of_all_pairs(layer, *grids), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize('name', ['fc1', 'fc2'])
def test_pruned_weights_are_trained(name: str) -> None:
    bias, grids = LogCPB(2, (14, 14)), ((8, 8), (2, 2))
    layer = getattr(bias, name)
    prune.random_unstructured(layer, 'weight', 0.5)
    for _ in range(2):
        bias(*grids)[0].square().sum().backward()
        with torch.no_grad():
            layer.weight_orig -= 0.01 * layer.weight_orig.grad
    pairs = expand(*bias(*grids))
    torch.testing.assert_close(layer.weight, layer.weight_orig * layer.weight_mask)
    torch.testing.assert_close(pairs, bias_of_all_pairs(bias, *grids), rtol=1e-5, atol=1e-4)


def test_table_has_all_offsets_and_no_more_where_all_cells_have_one_size() -> None:
    for length, pooled in itertools.product(range(1, 20), range(1, 24)):
        offsets = (torch.arange(length)[:, None] - doubled_centres(length, pooled, 'cpu').double() / 2).unique()
        found = offsets_of_grid(length, pooled)
        assert torch.isin(offsets, found).all() and (found[0], found[-1]) == (offsets[0], offsets[-1])
        assert length % pooled or found.equal(offsets)


@pytest.mark.slow
@needs('compiler')
@torch.no_grad()
def test_indices_of_any_size_compile() -> None:
    def indices(x: torch.Tensor) -> torch.Tensor:
        return _offset_index(len(x), len(x) // 8, x.device) + 0

    compiled = torch.compile(indices, dynamic=True)
    for length in (32, 40, 33):
        assert torch.equal(compiled(torch.zeros(length)), indices(torch.zeros(length)))
