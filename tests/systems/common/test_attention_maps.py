"""Attention maps: each layer's output put together again from its weights and values, and recordings of any model."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.systems.common.attention_maps import AttentionMap, whole_attention
from bioattn_mm.systems.common.blocks import SoftmaxAttention
from bioattn_mm.systems.gab import GaussianRelPosAttention
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from bioattn_mm.systems.transnext import AggregatedAttention, LengthScaledAttention, LogCPB
from bioattn_mm.systems.vars import (
    ConvolutionalSparseReconstruction,
    GlobalFilter,
    PerformerAttention,
    SparseReconstructionAttention,
)
from tests.systems.common.small_backbones import build
from tests.systems.layers import randomized, split_heads, tokens

CHANNELS, HEADS = 12, 3
every_grid = pytest.mark.parametrize('grid', [(3, 7), (5, 4), (1, 6)], ids=str)


def some_queries(grid: tuple[int, int]) -> Tensor:
    """The corners and a few others, not in order."""
    number = grid[0] * grid[1]
    return torch.tensor([number - 1, 0, number // 2, grid[1] - 1])


def output_of(weights: AttentionMap, value: Tensor) -> Tensor:
    """Weights for all tokens, applied to values: (B, queries, C)."""
    return (weights.weights.flatten(3) @ value).transpose(1, 2).flatten(2)


def value_of(layer: nn.Module, x: Tensor) -> Tensor:
    """The last part of the layer's projection: (B, heads, N, d)."""
    return split_heads(layer.qkv(x)[..., -CHANNELS:])


# Layers with the channels above. That of ConViT is in its own tests.
LAYERS: dict[str, Callable[[], nn.Module]] = dict(
    gab=lambda: GaussianRelPosAttention(CHANNELS, HEADS, sigma=1.5),
    peripheral=lambda: PeripheralAttention(CHANNELS, HEADS),
    length_scaled=lambda: LengthScaledAttention(CHANNELS, HEADS, LogCPB(HEADS, (4, 4))),
    softmax=lambda: SoftmaxAttention(CHANNELS, HEADS),
    performer=lambda: PerformerAttention(CHANNELS, HEADS),
)


@every_grid
@pytest.mark.parametrize('name', LAYERS)
def test_weights_and_values_give_the_output(name: str, grid: tuple[int, int]) -> None:
    layer, x, queries = randomized(LAYERS[name]()), tokens(grid), some_queries(grid)
    shared = [DistanceEmbedding(HEADS).double()] if name == 'peripheral' else []
    maps = layer.attention_maps(x, *shared, queries=queries)
    (attention,) = whole_attention(maps)
    assert attention is maps['attention']
    for values in maps.values():
        assert values.rows.tolist() == [list(range(grid[0]))] and values.columns.tolist() == [list(range(grid[1]))]
        sums = values.weights.sum((-2, -1))
        torch.testing.assert_close(sums, torch.ones_like(sums))
    output = layer.proj(output_of(attention, value_of(layer, x)))
    torch.testing.assert_close(output, layer(x, *shared).flatten(1, 2)[:, queries])
    if 'position' in maps:
        assert (len(maps['content'].weights), len(maps['position'].weights)) == (2, 1)
        product = maps['content'].weights * maps['position'].weights
        torch.testing.assert_close(attention.weights, product / product.sum((-2, -1), keepdim=True))


def aggregated(pool_size: tuple[int, int] | None = None) -> AggregatedAttention:
    return AggregatedAttention(CHANNELS, HEADS, LogCPB(HEADS, (4, 4)), sr_ratio=2, pool_size=pool_size)


@pytest.mark.parametrize('pool_size', [None, (2, 3)], ids=str)
@pytest.mark.parametrize('grid', [(4, 10), (7, 5)], ids=str)
def test_window_and_pooled_path(grid: tuple[int, int], pool_size: tuple[int, int] | None) -> None:
    layer, x, queries = randomized(aggregated(pool_size)), tokens(grid), torch.arange(grid[0] * grid[1])
    maps = layer.attention_maps(x, queries)
    window, pooled = whole_attention(maps)
    assert [window, pooled] == [maps['window'], maps['pooled']]
    for axis, places in enumerate((pooled.rows, pooled.columns)):  # the means of what is pooled
        means = F.adaptive_avg_pool1d(torch.arange(grid[axis]).double()[None], layer.pooled_grid(grid)[axis])
        torch.testing.assert_close(places, means)
    sums = window.weights.sum((-2, -1)) + pooled.weights.sum((-2, -1))
    torch.testing.assert_close(sums, torch.ones_like(sums))

    inputs = layer.scale.logit_factors(layer._projections(x))
    output = torch.einsum('bnqrc,brcnd->bqnd', pooled.weights, inputs.pooled_value)
    local = window.weights + maps['learnable tokens'].weights
    for place, query in enumerate(queries.tolist()):
        for r, row in enumerate(window.rows[query].tolist()):
            for c, column in enumerate(window.columns[query].tolist()):
                assert (row - query // grid[1], column - query % grid[1]) == (r - 1, c - 1)
                if 0 <= row < grid[0] and 0 <= column < grid[1]:
                    output[:, place] += local[:, :, place, r, c, None] * inputs.value[:, row, column]
                else:
                    assert (local[:, :, place, r, c] == 0).all()
    torch.testing.assert_close(layer.proj(output.flatten(-2)), layer(x).flatten(1, 2))


@every_grid
@pytest.mark.parametrize('kind', ['foveal', 'peripheral'])
def test_foveal_and_peripheral_map(kind: str, grid: tuple[int, int]) -> None:
    """Cosine similarities with all N (pooled) tokens, times temperature and log N, without embedding and bias."""
    layer, x, queries = randomized(aggregated()), tokens(grid), some_queries(grid)
    map_of = getattr(layer, f'{kind}_map')
    weights, keys, of_keys = map_of(x, queries).weights, x, grid
    if kind == 'peripheral':
        of_keys = layer.pooled_grid(grid)
        pooled = F.adaptive_avg_pool2d(F.gelu(layer.pool_proj(x.permute(0, 3, 1, 2))), of_keys)
        keys = layer.pool_norm(pooled.permute(0, 2, 3, 1))
    query, key = (F.normalize(split_heads(t), dim=-1) for t in (layer.q(x), layer.kv(keys).chunk(2, -1)[0]))
    factor = F.softplus(layer.scale.temperature)[:, None] * math.log(math.prod(of_keys))
    torch.testing.assert_close(weights.flatten(3), (query[:, :, queries] @ key.mT * factor).softmax(-1))
    assert weights.shape[3:] == of_keys
    layer.scale.query_embedding.data.add_(1)
    layer.window_bias.data.add_(torch.randn_like(layer.window_bias))
    torch.testing.assert_close(map_of(x, queries).weights, weights)


@pytest.mark.parametrize('static_grid', [None, (4, 4)], ids=['vars_d', 'vars_sd'])
@every_grid
@torch.inference_mode()
def test_linear_sparse_reconstruction_is_attention(grid: tuple[int, int], static_grid: tuple | None) -> None:
    """Without a penalty each step is linear in the values, and the weights are those of a linear attention."""
    layer = SparseReconstructionAttention(CHANNELS, HEADS, static_grid, sparsity=0.0, threshold='soft')
    layer, x, queries = randomized(layer), tokens(grid), some_queries(grid)
    maps = layer.attention_maps(x, queries)
    assert list(maps) == ['step 0', 'step 1', 'step 2', 'attention']
    dictionary, states = layer.recurrent_states(x)
    for weights, codes in zip(maps.values(), states, strict=True):
        reconstruction = (dictionary @ codes)[:, :, queries].transpose(1, 2).flatten(2)
        torch.testing.assert_close(output_of(weights, value_of(layer, x)), reconstruction)
    norms = torch.stack([(dictionary @ codes).norm(dim=-1).unflatten(-1, grid) for codes in states])
    torch.testing.assert_close(layer.reconstruction_norms(x), norms)


def test_weights_of_sparse_reconstruction_are_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a penalty: against finite differences of the reconstruction, and in chunks of queries."""
    layer, x = randomized(SparseReconstructionAttention(CHANNELS, HEADS, sparsity=0.2)), tokens((2, 3), batch=1)
    queries = torch.arange(6)
    weights = layer.attention_maps(x, queries)['attention'].weights.flatten(3)
    dictionary, _ = layer.recurrent_states(x)
    value = value_of(layer, x).detach()

    def last(value: Tensor) -> Tensor:
        return dictionary @ list(layer.states(dictionary, value))[-1]

    with torch.no_grad():
        for key in range(6):
            step = torch.zeros_like(value)
            step[:, :, key] = 1e-5  # in every channel at once, of which none knows of the others
            difference = (last(value + step) - last(value - step)).mean(-1) / 2e-5
            torch.testing.assert_close(weights[..., key], difference, rtol=1e-6, atol=1e-8)
    monkeypatch.setattr('bioattn_mm.systems.vars.attention.MAX_DERIVATIVES', 1)
    torch.testing.assert_close(layer.attention_maps(x, queries)['attention'].weights.flatten(3), weights)


@every_grid
@torch.inference_mode()
def test_weights_of_convolutions(grid: tuple[int, int]) -> None:
    x, queries = torch.randn(2, *grid, 1, dtype=torch.float64), some_queries(grid)
    layer = randomized(GlobalFilter(1, (4, 4)))
    cases = [(x, layer.attention_maps(x, queries), [layer(x).flatten(1)])]
    for with_mixing in (True, False):
        layer = ConvolutionalSparseReconstruction(1, (4, 4), sparsity=0.0, with_mixing=with_mixing)
        dictionary, states = randomized(layer).recurrent_states(x)
        outputs = [layer.decode(dictionary, codes).flatten(1) for codes in states]
        cases.append((layer.v(x), layer.attention_maps(x, queries), outputs))
        torch.testing.assert_close(layer.reconstruction_norms(x).flatten(1), torch.stack(outputs).abs().flatten(1))
    for value, maps, wanted in cases:
        for weights, output in zip(maps.values(), wanted, strict=True):
            assert weights.weights.shape == (2, 1, 4, *grid)
            of_queries = output_of(weights, value.flatten(1, 2)[:, None])
            torch.testing.assert_close(of_queries[..., 0], output[:, queries])


@torch.no_grad()
def test_attention_with_a_class_token() -> None:
    model = build('ConViT').eval()
    first, *_, recording = record_attention(model, torch.randn(2, 3, 48, 112))
    assert first.head_parameters().keys() == {'gate'} and recording.head_parameters() == {}
    (x,), layer = recording.inputs, randomized(recording.layer).float()
    assert recording.tokens is x
    queries = some_queries(recording.grid)
    weights = recording.maps(queries)['attention'].weights.flatten(3)
    weights = torch.cat((1 - weights.sum(-1, keepdim=True), weights), -1)
    value = layer.qkv(x).chunk(3, -1)[2].unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    output = layer.proj((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, layer(x)[:, 1 + queries])


def test_recording_leaves_no_hook_behind() -> None:
    model = build('GABViT').eval()
    image = torch.randn(1, 3, 64, 96)
    record_attention(model, image)
    with pytest.raises(ValueError, match='expected an input'):
        record_attention(model, torch.randn(1, 3, 8, 8))
    assert not any(module._forward_pre_hooks for module in model.modules())
