"""Values and gradients of every operator against its formula, written out, or PyTorch's."""

import itertools
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm import ops
from bioattn_mm.ops.peripheral_attention import log_phi
from bioattn_mm.ops.portable import portable_formulas
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import CAPABILITIES, IN_USE, Place, capability, check_any_number_of_threads, needs_library
from tests.ops.kernels import (
    KERNELS,
    CosineAttentionInputs,
    aggregated_attention_inputs,
    check,
    cosine_attention_inputs,
    inputs_of,
)

FLOAT64, FLOAT32, FLOAT16, BFLOAT16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
GATE = 'gate after a linear layer'


def seen(height: int, width: int, window_size: int) -> list[tuple[int, int, int, int, int]]:
    """(i, j, offset, y, x) for every pair of a position and a token of its window that is inside the image."""
    pairs = []
    for i, j, u, v in itertools.product(*map(range, (height, width, window_size, window_size))):
        y, x = i + u - window_size // 2, j + v - window_size // 2
        if 0 <= y < height and 0 <= x < width:
            pairs.append((i, j, u * window_size + v, y, x))
    return pairs


def window_qk(query: Tensor, key: Tensor, bias: Tensor, backend: None = None) -> Tensor:
    logits = query.new_full((*query.shape[:4], bias.shape[1]), float('-inf'))
    for i, j, offset, y, x in seen(*query.shape[1:3], round(bias.shape[1] ** 0.5)):
        logits[:, i, j, :, offset] = (query[:, i, j] * key[:, y, x]).sum(-1) + bias[:, offset]
    return logits


def window_av(weights: Tensor, value: Tensor, backend: None = None) -> Tensor:
    output = torch.zeros_like(value)
    for i, j, offset, y, x in seen(*value.shape[1:3], round(weights.shape[-1] ** 0.5)):
        output[:, i, j] += weights[:, i, j, :, offset, None] * value[:, y, x]
    return output


def aggregated(*inputs: Tensor, backend: None = None) -> Tensor:
    """Equations 10 to 14 of TransNeXt."""
    x = ops.AggregatedAttentionInputs(*inputs)
    pooled = torch.einsum('bhwnd,bpqnd->bhwnpq', x.query, x.pooled_key)
    pooled = pooled + x.pooled_bias[:, x.pooled_bias_rows].permute(1, 3, 0, 2, 4)  # (H, W, heads, Ph, Pw)
    logits = torch.cat((window_qk(x.query, x.key, x.window_bias), pooled.flatten(4)), dim=-1)
    window, pooled = logits.softmax(-1).tensor_split([x.window_bias.shape[1]], dim=-1)
    of_pooled = torch.einsum('bhwnk,bknd->bhwnd', pooled, x.pooled_value.flatten(1, 2))
    return window_av(window + x.token_weights, x.value) + of_pooled


def sums_of_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    weights = torch.cat((weights, 1 - weights.sum(-1, keepdim=True)), dim=-1)
    return (table[:, rows] * weights[..., None]).sum(3)


def aggregated_of_unit_vectors(*inputs: Tensor, backend: None = None) -> Tensor:
    x = CosineAttentionInputs(*inputs)
    unit_query = F.normalize(x.query, dim=-1)
    rows, columns = torch.tensor([2, 3, 2]), torch.tensor([2, 3, 3, 3, 2])  # of the window inside of a grid of 3 x 5
    number_of_keys = (rows[:, None] * columns + 4.0)[:, :, None, None]
    pooled_bias = sums_of_rows(x.pooled_bias, x.pooled_bias_rows, x.pooled_bias_weights)  # (heads, H, Ph, C)
    return ops.aggregated_attention(
        query=(unit_query + x.query_embedding) * x.scale[:, None] * number_of_keys.double().log(),
        key=F.normalize(x.key_value[:, :, :, 0], dim=-1),
        value=x.key_value[:, :, :, 1],
        pooled_key=F.normalize(x.pooled_key_value[:, :, :, 0], dim=-1),
        pooled_value=x.pooled_key_value[:, :, :, 1],
        window_bias=x.window_bias,
        pooled_bias=pooled_bias.flatten(1, 2)[:, :, x.pooled_bias_columns],
        pooled_bias_rows=torch.arange(6).view(3, 2),
        token_weights=torch.einsum('bhwnd,ndk->bhwnk', unit_query, x.tokens) + x.token_bias,
        backend='reference',
    )


def peripheral(*inputs: Tensor, backend: None = None) -> Tensor:
    """Equations 5 to 8 of PerViT."""
    query, key, value, plane, scale, shift, conv_weight, conv_bias, norm_weight, norm_bias = inputs
    _, height, width = scale.shape
    output = []
    for i, j in itertools.product(range(height), range(width)):
        top, left = height - 1 - i, width - 1 - j
        window = plane[:, top : top + height + 2, left : left + width + 2]
        hidden = (window * scale[:, top, left, None, None] + shift[:, top, left, None, None]).clamp(min=0)
        phi = F.conv2d(hidden[None], conv_weight, conv_bias)[0].flatten(1)
        phi = (phi - phi.mean(1, keepdim=True)) / (phi.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        phi = torch.sigmoid(phi * norm_weight[:, None] + norm_bias[:, None])
        logits = torch.einsum('bhd,bhkd->bhk', query[:, :, i * width + j], key) / query.shape[-1] ** 0.5
        weights = logits.softmax(-1) * phi
        output.append(torch.einsum('bhk,bhkd->bhd', weights / weights.sum(-1, keepdim=True), value))
    return torch.stack(output, dim=2)


def relative_bias(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float = 8**-0.5, backend: None = None
) -> Tensor:
    height, width = grid = query.shape[1:3]
    pairs = bias.new_empty(len(bias), *grid, *grid)
    for i, j, u, v in itertools.product(*map(range, (*grid, *grid))):
        pairs[:, i, j, u, v] = bias[:, i - u + height - 1, j - v + width - 1]
    return attend_to_all(query, key, value, pairs, scale)


def relative_bias_of_sums(query: Tensor, key: Tensor, value: Tensor, *bias: Tensor, backend: None = None) -> Tensor:
    pairs = sums_of_rows(*bias[:3])[..., bias[3]].permute(0, 1, 3, 2, 4)  # (heads, H, W, H, W)
    return attend_to_all(query, key, value, pairs, 8**-0.5)


def attend_to_all(query: Tensor, key: Tensor, value: Tensor, pairs: Tensor, scale: float) -> Tensor:
    logits = scale * torch.einsum('bqhd,bkhd->bhqk', query.flatten(1, 2), key.flatten(1, 2))
    weights = (logits + pairs.flatten(3).flatten(1, 2)).softmax(-1)
    return torch.einsum('bhqk,bkhd->bqhd', weights, value.flatten(1, 2)).view_as(query)


def table_of_mlps(vertical: Tensor, horizontal: Tensor, *layers: Tensor, backend: None = None) -> Tensor:
    hidden_weight, hidden_bias, weight, bias = layers
    if weight.dim() == 3:
        return torch.stack([table_of_mlps(vertical, horizontal, *mlp) for mlp in zip(*layers)])
    pairs = torch.cartesian_prod(vertical, horizontal).view(len(vertical), len(horizontal), 2)
    hidden = (pairs @ hidden_weight.T + hidden_bias).clamp(min=0)
    return torch.einsum('rck,hk->hrc', hidden, weight) + bias[:, None, None]


def codes_after_three_steps(
    gram: Tensor, target: Tensor, length: Tensor, penalty: Tensor, backend: None = None
) -> Tensor:
    """VARS, eq. 12, with a Gram matrix for each, and GELU for max(., 0)."""

    def threshold(codes: Tensor, limit: Tensor) -> Tensor:
        return codes.sign() * F.gelu(codes.abs() - limit)

    codes = threshold(target, penalty)
    for _ in range(3):
        codes = threshold(codes - length * (gram @ codes - target), length * penalty)
    return codes


GRIDS = [(5, 7), (1, 1), (1, 9), (8, 1), (3, 2)]
WINDOWS = [sizes for sizes in OPERATORS['sliding_window_qk'].sizes if sizes.get('grid') != (0, 7)]
WINDOWS += [dict(window_size=5), dict(window_size=9, grid=(1, 1))]
WINDOWS += [dict(channels=5), dict(channels=0)]  # no vector of several channels divides 5
FORMULAS = {
    'aggregated_attention': (
        aggregated,
        dict(),
        dict(window_size=5),
        dict(window_size=7, grid=(3, 4)),
        dict(grid=(1, 1), pooled_grid=(1, 1)),
        dict(grid=(2, 9), pooled_grid=(7, 7), heads=1),
    ),
    'cosine_attention': (
        aggregated_of_unit_vectors,
        *(dict(grid=(3, 5), pooled_grid=(2, 2), summands=number) for number in (1, 4)),
    ),
    'relative_bias_attention of summed rows': (relative_bias_of_sums, *(dict(grid=grid) for grid in GRIDS)),
    'relative_bias_attention': (relative_bias, *(dict(grid=grid, heads=3) for grid in GRIDS)),
    'relative_bias_attention with a scale': (partial(relative_bias, scale=0.7), dict()),
    'peripheral_attention': (
        peripheral,
        dict(),
        dict(grid=(1, 1), batch=1),
        dict(grid=(1, 7)),
        dict(grid=(7, 1), heads=1, channels=1),
        dict(grid=(5, 15), heads=6, channels=33),
    ),
    'log_cpb_table': (
        table_of_mlps,
        dict(),
        dict(rows=1, columns=1, hidden=1, heads=1),
        dict(rows=5, columns=64, hidden=130, heads=9),
        dict(rows=70, columns=3, hidden=33, heads=4),  # more rows than columns
        dict(rows=9, columns=37, hidden=33, heads=5, mlps=3),
        *(dict.fromkeys([empty], 0) for empty in ('rows', 'columns', 'hidden', 'heads')),
    ),
    'sliding_window_qk': (window_qk, *WINDOWS),
    'sliding_window_av': (window_av, *WINDOWS),
    'sparse_codes': (
        codes_after_three_steps,
        dict(),
        dict(batch=1, states=1, channels=1),
        dict(states=19, channels=37),
        *(dict.fromkeys([empty], 0) for empty in ('batch', 'channels')),
    ),
}


@pytest.mark.parametrize(
    ('name', 'sizes', 'dtype', 'tolerance'),
    [
        *((name, each, FLOAT64, None) for name, (_, *sizes) in FORMULAS.items() for each in sizes),
        ('log_cpb_table', dict(rows=40, columns=33, hidden=512, heads=12), FLOAT32, 2e-6),
        ('sparse_codes', dict(states=19, channels=37), FLOAT32, None),
        *(
            (f'sliding_window_{of}', dict(channels=24), dtype, tolerance)
            for of in ('qk', 'av')
            # In half precision products are summed in float32: the only other rounding is that of the result itself.
            for dtype, tolerance in ((FLOAT16, 2**-11), (BFLOAT16, 2**-8), (FLOAT32, None))
        ),
    ],
    ids=str,
)
def test_equals_formula(name: str, sizes: dict, dtype: torch.dtype, tolerance: float | None, place: Place) -> None:
    if place.backend == 'cuda' and dtype not in KERNELS[name].dtypes.get('cuda', ()):
        pytest.skip('not compiled for CUDA')
    check(name, inputs_of(name, dtype, **sizes), place, tolerance, FORMULAS[name][0])


# Several tiles, bands or groups of queries, none whole; more pooled keys than queries; rows of one token.
OF_ATTENTION = [
    ('aggregated_attention', dict(grid=(37, 70), pooled_grid=(4, 9), channels=24)),
    ('aggregated_attention', dict(grid=(9, 65), pooled_grid=(33, 40), channels=8)),
    ('aggregated_attention', dict(grid=(20, 11), window_size=9, channels=64, heads=3)),
    ('cosine_attention', dict()),
    ('cosine_attention', dict(grid=(21, 70), pooled_grid=(4, 9), channels=24, consecutive=True)),
    ('cosine_attention', dict(grid=(9, 65), pooled_grid=(33, 4), channels=12)),
    ('cosine_attention', dict(grid=(3, 4), window_size=7, heads=1, summands=4)),
    ('cosine_attention', dict(grid=(9, 70), pooled_grid=(4, 5), channels=24, summands=2)),
    ('cosine_attention', dict(grid=(5, 41), pooled_grid=(3, 4), batch=5, consecutive=True, summands=4)),
    ('cosine_attention', dict(grid=(1, 1), pooled_grid=(1, 1))),
    ('peripheral_attention', dict(grid=(20, 31), heads=4, channels=70, batch=1)),
    ('peripheral_attention', dict(grid=(6, 67), heads=5, channels=32)),
    ('peripheral_attention', dict(grid=(9, 3), heads=12, channels=8)),
    ('relative_bias_attention', dict(grid=(17, 31), heads=2, channels=24, batch=1)),
    ('relative_bias_attention of summed rows', dict(grid=(17, 41), heads=2, channels=24)),
    ('relative_bias_attention', dict(grid=(300, 3), heads=1, channels=5, batch=1)),
    ('relative_bias_attention', dict(grid=(2, 400), heads=2, channels=8, batch=1)),
    ('relative_bias_attention', dict(grid=(1, 700), heads=1, channels=16, batch=1)),
    ('relative_bias_attention', dict(grid=(40, 1), heads=3, channels=1, batch=1)),
    *((name, dict(batch=0)) for name in OPERATORS if name.endswith('attention')),
]
# Cells of the same size, of several sizes that overlap, as many as tokens, and more.
CELLS = [(8, 12, '4 x 3'), (7, 10, '3 x 4'), (5, 3, '5 x 3'), (3, 4, '7 x 5'), (6, 9, '1 x 1')]
ON_CPU = [
    *((*row, dtype, tolerance) for row in OF_ATTENTION for dtype, tolerance in ((FLOAT32, 3e-5), (FLOAT64, 1e-10))),
    # Queries and weights are rounded to bfloat16, too.
    *(
        ('relative_bias_attention', dict(grid=grid, heads=3, channels=channels), BFLOAT16, 2e-2)
        for grid in [*GRIDS, (9, 35)]
        for channels in (8, 24, 5)
    ),
    *(
        (GATE, dict(grid=grid, channels=32), dtype, None)
        for grid in [(1, 1), (2, 1), (1, 6), (9, 37), (67, 34)]
        for dtype in (FLOAT64, FLOAT32, BFLOAT16)
    ),
    *(
        (name, sizes, dtype, None)
        for name in ('add_norm', 'add_norm, both results', 'add_norm of two tensors')
        for sizes in OPERATORS['add_norm'].sizes
        for dtype in (FLOAT32, BFLOAT16)
    ),
    *(
        (f'gelu_pool to {to}', dict(height=height, width=width, channels=channels), dtype, tolerance)
        for height, width, to in CELLS
        for channels in (16, 17, 72)
        for dtype, tolerance in ((FLOAT64, 1e-10), (FLOAT32, 1e-6), (BFLOAT16, 2**-8))
    ),
]


@needs_library
@pytest.mark.parametrize(('name', 'sizes', 'dtype', 'tolerance'), ON_CPU, ids=str)
def test_cpu_kernels_equal_pytorch(name: str, sizes: dict, dtype: torch.dtype, tolerance: float | None) -> None:
    """Those of CUDA are in test_cuda_kernels.py."""
    for instructions in CAPABILITIES if 'pool' in name else [IN_USE]:
        with capability(instructions):
            check(name, inputs_of(name, dtype, **sizes), Place('cpu'), tolerance)


@pytest.mark.parametrize('sizes', [dict(), dict(grid=(9, 6), pooled_grid=(3, 2), window_size=5)], ids=str)
def test_baselines_compute_the_same(sizes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other means of aggregated attention that benchmarks compare it with."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / 'benchmarks')
    baselines, inputs = import_module('baselines'), aggregated_attention_inputs(**sizes, dtype=FLOAT32)
    want = ops.aggregated_attention(*inputs, backend='reference')
    torch.testing.assert_close(baselines.unfused_attention(*inputs), want, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        flex = baselines.flex_aggregated_attention(*inputs, compiled=False)
        torch.testing.assert_close(flex(*inputs), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('dtype', [FLOAT64, FLOAT32, FLOAT16, BFLOAT16])
def test_unit_vectors(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, dtype=dtype)
    x[0, 1] = 0
    if dtype != FLOAT16:
        x[1, 2] *= 1e-8  # shorter than the smallest norm
    x.requires_grad_()
    full, grad = x.detach().to(torch.promote_types(dtype, FLOAT32)).requires_grad_(), torch.randn_like(x)
    want = F.normalize(full, dim=-1, eps=1e-6)
    assert torch.equal(ops.unit_vectors(x), want.to(dtype))
    assert torch.equal(ops.unit_vectors(x.detach()), want.to(dtype))
    (got,) = torch.autograd.grad(ops.unit_vectors(x), x, grad)
    torch.testing.assert_close(got, torch.autograd.grad(want, full, grad.to(full.dtype))[0].to(dtype))
    if dtype == FLOAT64:
        assert torch.autograd.gradgradcheck(ops.unit_vectors, torch.randn(3, 4, dtype=dtype, requires_grad=True))


@needs_library
def test_heads_are_apart() -> None:
    """Threads with neighbouring heads add to neighbouring gradients of the position bias, a vector at a time."""
    inputs = cosine_attention_inputs(batch=3000, grid=(1, 1), pooled_grid=(1, 1), dtype=FLOAT32)
    rows = torch.zeros(1, 1, 1, dtype=int)
    inputs = inputs._replace(pooled_bias=inputs.pooled_bias[:, :1, :1], pooled_bias_rows=rows)
    inputs = inputs._replace(pooled_bias_columns=rows[0])
    check_any_number_of_threads(lambda: OPERATORS['cosine_attention'].values_and_gradients(inputs, 'cpu'))


def test_zeros_stay_zeros(place: Place) -> None:
    """Below the smallest norm, a vector is multiplied by a constant."""
    dtype, tolerance = (FLOAT32, 4e-5) if place.backend == 'cuda' else (FLOAT64, 1e-10)
    inputs = cosine_attention_inputs(dtype=dtype)
    inputs.query[0, 2, 3] = 0
    inputs.key_value[0, 1, 4] *= 1e-9
    inputs.pooled_key_value[1, 1, 1] = 0
    check('cosine_attention', inputs, place, tolerance)


@pytest.mark.parametrize('factor', [1, 1e4])
def test_extreme_position_logits(factor: float, backend: str) -> None:
    inputs = inputs_of('peripheral_attention')
    inputs[0] *= factor
    inputs[-1] -= 1000  # the sigmoid itself is 0
    run = OPERATORS['peripheral_attention'].values_and_gradients
    results, (wanted, *_) = run(inputs, backend), run(inputs, 'reference')
    assert all(result.isfinite().all() for result in results)
    torch.testing.assert_close(results[0], wanted, rtol=0, atol=1e-3)


def test_queries_whose_memory_overlaps() -> None:
    """Views of each other's elements, of which PyTorch's product by the scale has other strides."""
    query = torch.randn(1, 9, 40).unfold(2, 32, 1).unsqueeze(3)
    key, value = torch.randn(2, 1, 9, 9, 1, 32)
    bias = torch.randn(1, 17, 17)
    wanted = ops.relative_bias_attention(query.contiguous(), key, value, bias)
    torch.testing.assert_close(ops.relative_bias_attention(query, key, value, bias), wanted)


def test_position_based_attention_keeps_its_precision_under_autocast() -> None:
    arguments = inputs_of('peripheral_attention')[3:]
    height, width = arguments[1].shape[1:]
    whole = [*arguments, 1e-5], slice(0, height), slice(0, width)
    with torch.autocast('cpu', BFLOAT16):
        result = log_phi(*whole)
        with portable_formulas():
            torch.testing.assert_close(log_phi(*whole), result)
    assert result.dtype == FLOAT32


def test_large_logits_and_offsets_without_weight(backend: str) -> None:
    query, *others, bias = inputs_of('relative_bias_attention', grid=(25, 30), channels=2)
    # The offset 0 and all keys further down in the grid: the blocks of keys before a query have no weight at all.
    bias[:, 25:] = float('-inf')
    inputs = [query * 1e4, *others, bias]
    output = ops.relative_bias_attention(*inputs, backend=backend)
    assert output.isfinite().all()
    exact = ops.relative_bias_attention(*(tensor.double() for tensor in inputs), backend='reference')
    torch.testing.assert_close(output, exact.float(), atol=1e-2, rtol=0)


def test_weights_outside_the_image_do_nothing(place: Place) -> None:
    of_qk, (weights, value) = (
        OPERATORS[f'sliding_window_{of}'].inputs({}, place.device, FLOAT64) for of in ('qk', 'av')
    )
    outside = window_qk(*of_qk).isinf()
    assert 0 < outside.sum() < outside.numel()
    changed = weights.masked_fill(outside, float('inf')).requires_grad_()
    output = ops.sliding_window_av(changed, value, backend=place.backend)
    assert torch.equal(output, ops.sliding_window_av(weights, value, backend=place.backend))
    (gradient,) = torch.autograd.grad(output.sum(), changed)
    assert torch.equal(gradient == 0, outside)


def test_coordinates_in_any_order(place: Place) -> None:
    """Also repeated ones, and units that are active in all columns, in none, or in some at either end."""
    inputs = inputs_of('log_cpb_table', FLOAT64, rows=5, columns=40, hidden=12, heads=20)
    inputs[1] = inputs[1][torch.arange(40) * 17 % 40].round(decimals=1)
    hidden_weight, hidden_bias = inputs[2:4]
    hidden_weight[:4, 1] = 0
    hidden_bias[:2], hidden_bias[2:4] = 9, -9
    check('log_cpb_table', inputs, place, formula=table_of_mlps)


@torch.no_grad()
def test_nan_goes_where_it_counts(place: Place) -> None:
    def isnan(name: str, number: int, *index: int) -> Tensor:
        inputs = inputs_of(name, BFLOAT16 if name == GATE else FLOAT64)
        inputs[number][index] = float('nan')
        return KERNELS[name].run(*(each.to(place.device) for each in inputs), backend=place.backend).isnan()

    found = isnan('log_cpb_table', 0, 2)
    assert found[:, 2].all() and found.sum() == found[:, 2].numel()
    assert isnan('log_cpb_table', 4, 1, 3).any((1, 2)).tolist() == [False, True, False]
    found = isnan(GATE, 0, 0, 2, 3, 1)
    assert found[0, 1:4, 2:5, 1].all() and found.sum() == 9


def test_gelu_of_extreme_values(place: Place) -> None:
    x = torch.tensor([-100.0, -10, -1e-6, 0, 1e-6, 10, 100, float('inf'), float('nan')]).view(1, 1, -1, 1)
    x = torch.cat([x.expand(-1, -1, -1, 16), torch.ones(1, 1, 9, 16)], dim=-1).requires_grad_()
    weight = torch.zeros(16, 1, 3, 3)
    weight[:, :, 1, 1] = 1
    # The neighbours of infinity and NaN are NaN, as in PyTorch's convolution.
    inputs = (tensor.to(place.device) for tensor in (x, weight, torch.zeros(16)))
    output = ops.gated_convolution(*inputs, backend=place.backend).cpu()[0, 0, :6, 0]
    grad = torch.autograd.grad(output.sum(), x)[0][0, 0, :5, 0]
    exact = x.detach()[0, 0, :6, 0].double().requires_grad_()
    want = F.gelu(exact)
    (want_grad,) = torch.autograd.grad(want.sum(), exact)
    torch.testing.assert_close(output.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), want_grad[:-1], rtol=1e-6, atol=1e-6)
