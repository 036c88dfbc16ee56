"""TransNeXt's attention, and what its ablations vary, against formulas written out for all pairs of tokens."""

import copy
import math
import re
from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from torch import Tensor, nn

from bioattn_mm.ops import chunked_attention
from bioattn_mm.systems.common.building import build_layer
from bioattn_mm.systems.transnext import (
    AggregatedAttention,
    ConvGLU,
    LengthScaledAttention,
    LogCPB,
    ScaledCosineQuery,
    TransNeXt,
    ablations,
)
from tests.systems.common.small_backbones import CASES
from tests.systems.layers import check_formula, randomized, split_heads, tokens

CHANNELS, HEADS = 12, 3
SCALES = [ScaledCosineQuery, ablations.CosineQueryWithoutEmbedding]
every_grid = pytest.mark.parametrize('grid', [(4, 7), (1, 5), (1, 1)], ids=str)


def logits(layer: nn.Module, query: Tensor, keys: Tensor, length: Tensor) -> Tensor:
    """Products of projected queries, (B, heads, N, d), and keys, (B, heads, M, d); `length` keys, (N, 1)."""
    scale = layer.scale
    unit = F.normalize(query, dim=-1)
    if not isinstance(scale, ablations.CosineQueryWithoutEmbedding):
        unit = unit + scale.query_embedding[:, None]
    factor = F.softplus(scale.temperature)[:, None] * length.log()
    return factor * unit @ F.normalize(keys, dim=-1).transpose(-2, -1)


def bias_of_pairs(layer: nn.Module, grid: tuple[int, int], pooled_grid: tuple[int, int]) -> Tensor:
    bias, rows = layer.position_bias(grid, pooled_grid)
    return bias[:, rows].transpose(2, 3).flatten(3).flatten(1, 2)


def written_out(layer: nn.Module, x: Tensor) -> Tensor:
    """Attention to the window and to pooled tokens, with tensors of all pairs."""
    grid, number = tuple(x.shape[1:3]), x.shape[1] * x.shape[2]
    pooled_grid = tuple(max(1, length // layer.sr_ratio) for length in grid)
    pooled = F.adaptive_avg_pool2d(F.gelu(layer.pool_proj(x.permute(0, 3, 1, 2))), pooled_grid)
    pooled = layer.pool_norm(pooled.permute(0, 2, 3, 1))
    query = split_heads(layer.q(x))
    key, value, pooled_key, pooled_value = (
        split_heads(part) for each in (x, pooled) for part in layer.kv(each).chunk(2, -1)
    )
    place = torch.cartesian_prod(*map(torch.arange, grid)).view(-1, 2)
    offset = place - place[:, None] + layer.window_size // 2  # key - query
    inside = ((offset >= 0) & (offset < layer.window_size)).all(-1)
    index = (offset[..., 0] * layer.window_size + offset[..., 1]) * inside

    def of_tokens(values: Tensor) -> Tensor:
        """Values of the places in the window, (B, heads, N, k * k), for the keys: (B, heads, N, N)."""
        return values.gather(-1, index.expand(*values.shape[:2], -1, -1))

    is_dynamic = isinstance(layer, ablations.DynamicBiasAttention)
    learnable = F.normalize(query, dim=-1) @ layer.learnable_tokens
    bias = of_tokens(learnable) if is_dynamic else layer._projections(x)['window_bias'][:, index]
    length = (inside.sum(-1, keepdim=True) + pooled_key.shape[2]).double()
    window_logits = logits(layer, query, key, length) + bias.masked_fill(~inside, float('-inf'))
    pooled_logits = logits(layer, query, pooled_key, length) + bias_of_pairs(layer, grid, pooled_grid)
    weights = torch.cat((window_logits, pooled_logits), -1).softmax(-1)
    added = 0 if is_dynamic else of_tokens(learnable + layer.learnable_bias[:, None]) * inside
    output = (weights[..., :number] + added) @ value + weights[..., number:] @ pooled_value
    return layer.proj(output.transpose(1, 2).reshape(x.shape))


def bias_of(kind: type, pooled_grid: tuple[int, int] = (2, 2)) -> nn.Module:
    return build_layer(dict(type=kind), num_heads=HEADS, pretrain_grid=(4, 4), pretrain_pooled_grid=pooled_grid)


def make(
    kind: type, scale: type | None = None, position_bias: type | nn.Module = LogCPB, **arguments: object
) -> nn.Module:
    bias = bias_of(position_bias) if isinstance(position_bias, type) else position_bias
    known = dict(embed_dims=CHANNELS, num_heads=HEADS, sr_ratio=2, position_bias=bias)
    return randomized(build_layer(dict(type=kind, scale=scale and dict(type=scale), **arguments), **known))


# Attention to the window and to pooled tokens.
MIXERS = [
    *((AggregatedAttention, dict(scale=scale)) for scale in SCALES),
    *((ablations.PixelFocusedAttention, dict(window_size=size)) for size in (3, 5)),
    *((ablations.DynamicBiasAttention, dict(window_size=size)) for size in (3, 5)),
    (AggregatedAttention, dict(position_bias=ablations.RelativePositionBias)),
    *(
        (kind, dict(position_bias=bias))
        for kind in (AggregatedAttention, ablations.DynamicBiasAttention)
        for bias in (ablations.NoPositionBias, ablations.LogCPBOfBothPaths)
    ),
]


@every_grid
@pytest.mark.parametrize(('kind', 'options'), MIXERS, ids=str)
def test_token_mixers(kind: type, options: dict, grid: tuple[int, int], backend: str, monkeypatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    layer, x = make(kind, **options), tokens(grid)
    check_formula(layer(x), written_out(layer, x), [x, *layer.parameters()])


BIASES_OF_ALL = {
    'extrapolated': lambda: bias_of(LogCPB),
    'interpolated': lambda: LogCPB(HEADS, (4, 4), 'interpolate', (3, 5), (3, 5)),
    'interpolated to its own size': lambda: LogCPB(HEADS, (4, 4), 'interpolate', (4, 7), (4, 7)),
    'none': lambda: bias_of(ablations.NoPositionBias),
    'learned': lambda: bias_of(ablations.RelativePositionBias, (4, 4)),
}


@every_grid
@pytest.mark.parametrize('scale', SCALES)
@pytest.mark.parametrize('bias', BIASES_OF_ALL)
def test_attention_to_all_tokens(bias: str, scale: type, grid: tuple[int, int], backend: str, monkeypatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 500)  # a row or two at a time
    layer, x = make(LengthScaledAttention, scale, position_bias=BIASES_OF_ALL[bias]()), tokens(grid)
    query, key, value = (split_heads(part) for part in layer.qkv(x).chunk(3, dim=-1))
    length = torch.tensor([[float(grid[0] * grid[1])]], dtype=torch.float64)
    weights = (logits(layer, query, key, length) + bias_of_pairs(layer, grid, grid)).softmax(-1)
    want = layer.proj((weights @ value).transpose(1, 2).reshape(x.shape))
    check_formula(layer(x), want, [x, *layer.parameters()])


def test_relative_position_bias_is_a_number_for_each_offset_of_cells() -> None:
    layer = randomized(ablations.RelativePositionBias(HEADS, (4, 6), (4, 6)))
    assert layer.offsets.shape == (HEADS, 7, 11)
    bias, rows = layer((4, 6), (4, 6))
    pairs = bias[:, rows]  # (heads, H, Ph, W, Pw)
    assert (pairs[:, 1, 3, 5, 0] == layer.offsets[:, 1 - 3 + 3, 5 - 0 + 5]).all()
    assert (layer.table((4, 6), (4, 6))[0] == layer.offsets).all()
    # Another grid: all pairs resized, queries and keys.
    bias, rows = layer((8, 6), (8, 6))
    pairs = pairs.permute(0, 3, 4, 1, 2).flatten(1, 2)
    wanted = F.interpolate(pairs, (8, 8), mode='bilinear').unflatten(1, (6, 6)).permute(0, 3, 4, 1, 2)
    torch.testing.assert_close(bias[:, rows], wanted)
    assert layer.table((8, 6), (8, 6))[1].shape == (8, 8, 4)  # sums of four rows of the table
    # Queries of one cell have one bias.
    pooled = randomized(ablations.RelativePositionBias(HEADS, (8, 6), (2, 3)))
    assert pooled.offsets.shape == (HEADS, 3, 5)
    bias, rows = pooled((8, 6), (2, 3))
    pairs = bias[:, rows]
    for row, cell, column, pooled_column in [(0, 0, 0, 0), (3, 1, 1, 2), (4, 0, 5, 0), (7, 1, 2, 2)]:
        wanted = pooled.offsets[:, row // 4 - cell + 1, column // 2 - pooled_column + 2]
        assert (pairs[:, row, cell, column, pooled_column] == wanted).all()


@pytest.mark.parametrize('window_size', [3, 5])
def test_log_cpb_of_the_window(window_size: int) -> None:
    """The bias of the pooled path at the offsets of the window's tokens (TransNeXt, table 6, row 2)."""
    layer = randomized(ablations.LogCPBOfBothPaths(HEADS, (9, 5))).double()
    bias, rows = layer((9, 5), (9, 5))  # each pooled token a token
    pairs = bias[:, rows]
    reach = range(-(window_size // 2), window_size // 2 + 1)
    wanted = [pairs[:, 4, 4 + row, 2, 2 + column] for row in reach for column in reach]
    torch.testing.assert_close(layer.of_window(window_size), torch.stack(wanted, dim=1), rtol=0, atol=1e-12)
    assert make(AggregatedAttention, position_bias=layer).window_bias is None


def test_no_bias_has_no_parameters_and_is_zero_in_both_paths() -> None:
    attention = make(AggregatedAttention, position_bias=ablations.NoPositionBias(HEADS))
    assert attention.window_bias is None and not list(attention.position_bias.parameters())
    bias, rows = attention.position_bias((4, 6), (2, 3))
    assert bias[:, rows].shape == (HEADS, 4, 2, 6, 3)
    assert not bias.any() and not attention.position_bias.of_window(3).any()


@torch.no_grad()
@pytest.mark.parametrize('size', [500, (96, 130)], ids=str)
def test_unscaled_is_the_model_itself_at_the_training_size_alone(size: int | tuple[int, int]) -> None:
    arch = CASES['TransNeXt'].arch
    backbone = TransNeXt(arch, img_size=size).eval()
    unscaled = TransNeXt(arch, img_size=size, **TransNeXt.position_bias_settings('unscaled', size, arch)).eval()
    unscaled.load_state_dict(backbone.state_dict())
    image = torch.randn(1, 3, *to_2tuple(size))
    torch.testing.assert_close(unscaled(image), backbone(image))
    for stage, other in zip(unscaled(image[..., :64, :]), backbone(image[..., :64, :]), strict=True):
        assert not torch.allclose(stage, other)


@pytest.mark.parametrize('by', ['hook', 'class'])
@pytest.mark.parametrize('kind, name', [(ConvGLU, 'fc1'), (ConvGLU, 'dwconv'), (AggregatedAttention, 'pool_proj')])
def test_a_layer_with_a_hook_or_of_another_class_is_called(kind: type, name: str, by: str) -> None:
    """As that is whose weight torch.nn.utils.prune computes, or that has adapters."""
    layer = make(kind) if kind is AggregatedAttention else randomized(ConvGLU(CHANNELS, 4))
    x = torch.randn(2, 5, 4, CHANNELS).double()
    changed = copy.deepcopy(layer)
    own = getattr(changed, name)
    if by == 'hook':
        own.register_forward_hook(lambda module, inputs, output: output + 1)
    else:
        forward = type(own).forward
        own.__class__ = type('PlusOne', (type(own),), dict(forward=lambda self, x: forward(self, x) + 1))
    getattr(layer, name).bias.data += 1
    torch.testing.assert_close(changed(x), layer(x))


def test_channel_mixers_equal_their_formulas() -> None:
    x = torch.randn(2, 5, 4, CHANNELS).double()

    def check(layer: nn.Module, width: int, formula: Callable[[Callable, Tensor], Tensor]) -> None:
        convs = [module for module in randomized(layer).modules() if isinstance(module, nn.Conv2d)]
        hidden = formula(lambda tokens: convs[0](tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), layer.fc1(x))
        assert layer.fc2.in_features == width
        torch.testing.assert_close(layer(x), layer.fc2(hidden))

    def gated(x: Tensor) -> tuple[Tensor, Tensor]:
        gate, value = x.chunk(2, -1)
        return F.gelu(gate), value

    check(ablations.MLP(CHANNELS, 4), 48, lambda conv, x: F.gelu(x))
    check(ablations.DepthwiseMLP(CHANNELS, 4), 48, lambda conv, x: F.gelu(conv(x)))
    check(ablations.GLU(CHANNELS, 4), 32, lambda conv, x: math.prod(gated(x)))
    # Eq. 20 to 22 of the paper.
    check(ablations.OtherConvGLU(CHANNELS, 4, 1), 32, lambda conv, x: conv(gated(x)[0]) * gated(x)[1])
    check(ablations.OtherConvGLU(CHANNELS, 4, 2), 32, lambda conv, x: gated(x)[0] * conv(gated(x)[1]))
    check(ablations.OtherConvGLU(CHANNELS, 4, 3), 32, lambda conv, x: conv(math.prod(gated(x))))
    # What settings say comes before what is known of the place.
    assert build_layer(dict(type='bioattn_mm.GLU', ratio=2), embed_dims=12, ratio=4).fc2.in_features == 16


@torch.no_grad()
def test_spatial_reduction_and_convffn_are_those_of_pvt_v2() -> None:
    """The model of step 1 of TransNeXt's table 2 is timm's, with its weights."""
    host = timm.create_model('pvt_v2_b1').eval()
    ours = TransNeXt(
        dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), depths=(2, 2, 2, 2)),
        token_mixers=dict(type='bioattn_mm.SpatialReductionAttention'),
        channel_mixer=dict(type='bioattn_mm.DepthwiseMLP'),
    ).eval()
    weights = {}
    for name, value in host.state_dict().items():
        name = re.sub(r'^stages\.(\d)\.downsample\.', r'stages.\1.patch_embed.', name)
        weights[re.sub(r'^patch_embed\.', 'stages.0.patch_embed.', name)] = value
    lacking = ours.load_state_dict(weights, strict=False)
    assert not lacking.missing_keys and all(name.startswith('head.') for name in lacking.unexpected_keys)
    image = torch.randn(1, 3, 96, 64)
    expected = host.forward_intermediates(image, intermediates_only=True)
    torch.testing.assert_close(list(ours(image)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(('pooled_grid', 'whole_cells'), [((2, 3), True), ((4, 6), True), ((3, 3), False)])
def test_pooling_of_whole_cells_is_deterministic(
    pooled_grid: tuple[int, int], whole_cells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the backward pass of adaptive pooling has no deterministic kernel."""
    layer, x = AggregatedAttention(5, 1, ablations.NoPositionBias(1), 2, pooled_grid), torch.randn(2, 4, 6, 5)
    layer.pool_norm = nn.Identity()
    adaptive, calls = F.adaptive_avg_pool2d, []
    want = adaptive(F.gelu(layer.pool_proj(x.permute(0, 3, 1, 2))), pooled_grid).permute(0, 2, 3, 1)
    monkeypatch.setattr(F, 'adaptive_avg_pool2d', lambda *args: calls.append(args) or adaptive(*args))
    torch.testing.assert_close(layer.pooled_tokens(x), want)
    assert len(calls) == (not whole_cells)
