"""The log-spaced position bias against its definition over all pairs."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.nn.utils import prune

from bioattn_mm.ops.relative_bias import bias_of_pairs
from bioattn_mm.systems.common.size_cache import SizeCache
from bioattn_mm.systems.transnext import LogCPB

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
    pairs = torch.stack(
        [
            vertical[:, None, :, None].expand(*grid, *pooled_grid),
            horizontal[None, :, None, :].expand(*grid, *pooled_grid),
        ],
        dim=-1,
    )
    return layer.fc2(F.relu(layer.fc1(pairs.to(layer.fc1.weight.dtype)))).movedim(-1, 0)


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


@pytest.mark.parametrize(('grid', 'pooled_grid'), GRIDS)
def test_extrapolated_bias_equals_the_definition(grid: Grid, pooled_grid: Grid) -> None:
    layer = LogCPB(num_heads=3, pretrain_grid=(14, 12)).double()
    bias, rows = layer(grid, pooled_grid)
    torch.testing.assert_close(expand(bias, rows), bias_of_all_pairs(layer, grid, pooled_grid))


def test_number_of_coordinates_grows_with_the_sides_not_with_the_pairs() -> None:
    layer = LogCPB(num_heads=2, pretrain_grid=(56, 56))
    bias, rows = layer((256, 256), (32, 32))
    assert layer._table((256, 256), (32, 32)).shape == (2, 504, 504)
    assert bias.shape == (2, 504, 256, 32)
    assert rows.shape == (256, 32)


@pytest.mark.parametrize('grid', [(8, 12), (5, 9), (6, 6)])
def test_interpolated_bias_resizes_keys_then_queries(grid: Grid) -> None:
    pooled_grid = (grid[0] // 2, grid[1] // 2)
    layer = LogCPB(2, (7, 7), 'interpolate', train_grid=(6, 6), train_pooled_grid=(3, 3)).double()
    want = bias_of_all_pairs(layer, (6, 6), (3, 3)).flatten(1, 2)  # (heads, N, Ph, Pw)
    want = F.interpolate(want, pooled_grid, mode='bilinear').flatten(2).transpose(1, 2)
    want = F.interpolate(want.unflatten(2, (6, 6)), grid, mode='bilinear')  # (heads, P, H, W)
    want = want.unflatten(1, pooled_grid).permute(0, 3, 4, 1, 2)
    torch.testing.assert_close(expand(*layer(grid, pooled_grid)), want)


@pytest.mark.parametrize('mode', ['extrapolate', 'interpolate'])
@pytest.mark.parametrize('grid', [(7, 9), (5, 6), (1, 1), (1, 4)])
def test_bias_between_all_tokens_of_a_grid_without_that_of_all_pairs(mode: str, grid: Grid) -> None:
    layer = LogCPB(3, (4, 3), mode, train_grid=(5, 6), train_pooled_grid=(5, 6)).double()
    pairs = expand(*layer(grid, grid)).flatten(3).flatten(1, 2)
    table = layer.of_offsets(grid)
    if mode == 'interpolate' and grid != (5, 6):
        assert table is None
        rows = layer.resized_rows(grid)
        torch.testing.assert_close(rows(slice(None)), pairs)
        torch.testing.assert_close(rows(slice(1, 4)), pairs[:, grid[1] : 4 * grid[1]])
    else:
        assert table.shape == (3, 2 * grid[0] - 1, 2 * grid[1] - 1)
        torch.testing.assert_close(bias_of_pairs(table, grid), pairs)


def test_half_precision_weights_give_a_float32_bias() -> None:
    layer = LogCPB(2, (14, 14))
    exact, _ = layer((8, 8), (2, 2))
    with torch.autocast('cpu', torch.bfloat16):
        autocast, _ = layer((8, 8), (2, 2))
    assert autocast.dtype == torch.float32
    torch.testing.assert_close(autocast, exact)
    assert layer.half()((8, 8), (2, 2))[0].dtype == torch.float32


class CountedLogCPB(LogCPB):
    """Counts the runs of the MLP."""

    count = 0

    def _table(self, *grids: Grid) -> torch.Tensor:
        self.count += 1
        return super()._table(*grids)


@pytest.fixture
def counted() -> CountedLogCPB:
    layer = CountedLogCPB(2, (14, 14))
    layer.fc2.weight.data.normal_()
    return layer.eval()


@torch.no_grad()
def test_cached_for_each_size_in_eval_mode(counted: CountedLogCPB) -> None:
    first, _ = counted((8, 8), (2, 2))
    counted((12, 8), (3, 2))
    again, _ = counted((8, 8), (2, 2))
    assert counted.count == 2
    torch.testing.assert_close(again, first, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    'change',
    [
        lambda layer: layer.fc1.weight.mul_(2),
        lambda layer: layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()}),
        lambda layer: setattr(layer.fc2, 'weight', torch.nn.Parameter(layer.fc2.weight * 2)),
        lambda layer: layer.double(),
        lambda layer: (layer.train(), layer.eval(), layer.fc2.weight.data.mul_(2)),
        lambda layer: prune.random_unstructured(layer.fc1, 'weight', 0.5),
    ],
    ids=['in place', 'load_state_dict', 'assignment', 'dtype', 'train()', 'pruning'],
)
def test_cache_is_emptied_when_the_weights_change(counted: CountedLogCPB, change) -> None:
    counted((8, 8), (2, 2))
    change(counted)
    bias, rows = counted((8, 8), (2, 2))
    assert counted.count == 2
    torch.testing.assert_close(expand(bias, rows), bias_of_all_pairs(counted, (8, 8), (2, 2)), rtol=1e-5, atol=1e-4)


def test_nothing_is_cached_with_gradients(counted: CountedLogCPB) -> None:
    for layer in (counted, counted.train()):
        bias, _ = layer((8, 8), (2, 2))
        bias.sum().backward()
        assert layer.fc1.weight.grad.abs().sum() > 0
    assert len(counted._tables) == 0


@torch.no_grad()
def test_number_of_cached_sizes_is_bounded(counted: CountedLogCPB) -> None:
    for height in range(2, 2 + 2 * counted._tables.max_sizes):
        counted((height, 8), (1, 2))
    assert len(counted._tables) == counted._tables.max_sizes


@torch.no_grad()
def test_a_size_that_another_thread_drops_meanwhile(counted: CountedLogCPB) -> None:
    cache, results = SizeCache(max_sizes=1), []
    result = cache.get(counted, 1, lambda: results.append(cache.get(counted, 2, lambda: 'other')) or 'own')
    assert (result, results, len(cache)) == ('own', ['other'], 1)
    assert cache.get(counted, 1, lambda: 'again') == 'own'


@torch.no_grad()
def test_replicas_of_data_parallel_do_not_take_what_is_kept(counted: CountedLogCPB) -> None:
    counted((8, 8), (2, 2))
    replica = counted._replicate_for_data_parallel()
    for name, part in counted.named_children():
        replica._modules[name] = part._replicate_for_data_parallel()
        for key, parameter in part.named_parameters():
            setattr(replica._modules[name], key, 2 * parameter)
    assert not list(replica.parameters())
    assert not torch.allclose(replica((8, 8), (2, 2))[0], counted((8, 8), (2, 2))[0])


@pytest.mark.parametrize('name', ['fc1', 'fc2'])
def test_pruned_weights_are_trained(counted: CountedLogCPB, name: str) -> None:
    """Although the layer that has them is not called."""
    layer, grids = getattr(counted.train(), name), ((8, 8), (2, 2))
    prune.random_unstructured(layer, 'weight', 0.5)
    for _ in range(2):
        counted(*grids)[0].square().sum().backward()
        with torch.no_grad():
            layer.weight_orig -= 0.01 * layer.weight_orig.grad
    bias, rows = counted(*grids)
    torch.testing.assert_close(layer.weight, layer.weight_orig * layer.weight_mask)
    torch.testing.assert_close(expand(bias, rows), bias_of_all_pairs(counted, *grids), rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_other_parameters_in_the_same_memory(counted: CountedLogCPB) -> None:
    memory = {name: parameter.detach().clone() for name, parameter in counted.named_parameters()}
    biases = []
    for factor in (1, 2):
        weights = {name: torch.from_numpy(values.mul_(factor).numpy()) for name, values in memory.items()}
        biases.append(torch.func.functional_call(counted, weights, ((8, 8), (2, 2)))[0])
        del weights  # before the next ones come, as where a function makes them
    assert counted.count == 2
    assert not torch.allclose(*biases)


def test_parameters_whose_changes_cannot_be_seen() -> None:
    with torch.inference_mode():
        layer = CountedLogCPB(2, (14, 14)).eval()
        before = layer((8, 8), (2, 2))[0]
        layer.fc1.weight.add_(1)
        assert not torch.allclose(layer((8, 8), (2, 2))[0], before)


@torch.no_grad()
def test_tables_of_a_transform_or_of_fake_tensors_are_not_kept(counted: CountedLogCPB) -> None:
    one = torch.ones(1)
    torch.func.jvp(lambda x: x * counted((8, 8), (2, 2))[0].sum(), (one,), (one,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        counted((8, 8), (2, 2))
    assert not len(counted._tables)


@torch.no_grad()
def test_an_ensemble_by_vmap(counted: CountedLogCPB) -> None:
    factors = torch.tensor([1.0, 2.0])
    weights = {
        name: torch.stack([factor * value for factor in factors]) for name, value in counted.named_parameters()
    }
    grids = (8, 8), (2, 2)
    bias = torch.func.vmap(lambda weights: torch.func.functional_call(counted, weights, grids)[0])(weights)
    torch.testing.assert_close(bias[0], counted(*grids)[0])


@torch.no_grad()
def test_copies_do_not_share_the_cache(counted: CountedLogCPB) -> None:
    counted._tables.max_sizes = 3
    counted((8, 8), (2, 2))
    for other in (copy.deepcopy(counted), pickle.loads(pickle.dumps(counted))):
        assert len(other._tables) == 0 and other._tables.max_sizes == 3
        torch.testing.assert_close(other((8, 8), (2, 2))[0], counted((8, 8), (2, 2))[0])
