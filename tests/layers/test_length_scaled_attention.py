"""TransNeXt's attention of stage 4 against its formula with the bias of all pairs of tokens."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.layers import LengthScaledAttention, LogCPB
from bioattn_mm.ops import chunked_attention

MODES = ['extrapolate', 'interpolate']


def make_layer(mode: str = 'extrapolate', train_grid: tuple[int, int] = (4, 5)) -> LengthScaledAttention:
    layer = LengthScaledAttention(24, 3, LogCPB(3, (4, 4), mode, train_grid, train_grid))
    for parameter in layer.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return layer


def formula(layer: LengthScaledAttention, x: Tensor) -> Tensor:
    """Eq. 8 and 9 of TransNeXt, with tensors of all pairs."""
    grid = tuple(x.shape[1:3])
    query, key, value = layer.qkv(x).flatten(1, 2).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
    scale = F.softplus(layer.scale.temperature)[:, None] * math.log(grid[0] * grid[1])
    query = (F.normalize(query, dim=-1) + layer.scale.query_embedding[:, None]) * scale
    bias, rows = layer.position_bias(grid, grid)
    bias = bias[:, rows].transpose(2, 3).flatten(3).flatten(1, 2)
    weights = (query @ F.normalize(key, dim=-1).transpose(-2, -1) + bias).softmax(-1)
    return layer.proj((weights @ value).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('grid', [(4, 5), (6, 3), (1, 7), (5, 1), (1, 1)], ids=str)
def test_equals_the_formula_in_values_and_gradients(
    mode: str,
    grid: tuple[int, int],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 500)  # a row or two at a time
    layer = make_layer(mode).double()
    x = torch.randn(2, *grid, 24, dtype=torch.float64, requires_grad=True)
    outputs = layer(x), formula(layer, x)
    torch.testing.assert_close(*outputs)
    upstream = torch.randn_like(x)
    gradients = (torch.autograd.grad(y, [x, *layer.parameters()], upstream) for y in outputs)
    for ours, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(mode: str, dtype: torch.dtype) -> None:
    layer, x = make_layer(mode), torch.randn(2, 6, 7, 24)
    want = layer(x)
    with torch.autocast('cpu', dtype):
        autocast = layer(x)
    for output in (autocast, layer.to(dtype)(x.to(dtype))):
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), want, rtol=0, atol=0.05 * want.abs().max().item())


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('training', [False, True])
def test_no_tensor_of_all_pairs(
    mode: str,
    training: bool,
    backend: str,
    record_sizes: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    height, width = grid = (32, 24)
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 4 * 3 * width * height * width)
    layer = make_layer(mode)
    with torch.set_grad_enabled(training), record_sizes() as sizes:
        output = layer(torch.randn(1, *grid, 24, requires_grad=training))
        if training:
            output.sum().backward()
    pairs = 3 * (height * width) ** 2
    assert max(sizes) < (pairs / 15 if mode == 'extrapolate' and backend == 'cpu' else pairs / 4)


@pytest.mark.parametrize('mode', MODES)
def test_compiles_into_one_graph(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 3000)  # two chunks
    layer, x = make_layer(mode), torch.randn(1, 6, 7, 24)
    compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(x), layer(x))
    gradients = (
        torch.autograd.grad(module(x).square().sum(), list(layer.parameters())) for module in (compiled, layer)
    )
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
