"""PerViT: attention and its ablations against the formulas over all pairs of tokens; initial values, DeiT."""

import pytest
import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from torch import Tensor, nn

from bioattn_mm.ops import chunked_attention
from bioattn_mm.ops.backends import choose_backend
from bioattn_mm.systems.pervit import (
    DistanceEmbedding,
    PeripheralAttention,
    PerViT,
    PositionAttention,
    VectorDistance,
)
from tests.systems.common.small_backbones import CASES, DEIT, PERVIT
from tests.systems.layers import check_formula, randomized, split_heads, tokens

CHANNELS, HEADS = 12, 2
SMALL = CASES['PerViT'].arch
Grid = tuple[int, int]
every_grid = pytest.mark.parametrize('grid', [(4, 4), (3, 7), (5, 2), (1, 6), (1, 1)])
# The paper's; with the neighbourhood of a key and without, of one layer and of two: rows of table 5.
POSITIONS = {'peripheral': None} | {
    f'{"neighbours" if near else "alone"}, {layers}': dict(
        type='VariedPosition', with_neighbours=near, num_layers=layers
    )
    for near in (True, False)
    for layers in (1, 2)
}


def layer_of(position: str = 'peripheral', **options: object) -> PeripheralAttention:
    return randomized(PeripheralAttention(CHANNELS, HEADS, position=POSITIONS[position], **options))


def embedding_of(grid: Grid | None = None) -> nn.Module:
    """Euclidean distances, or with a grid those of learned vectors on it."""
    return randomized(DistanceEmbedding(HEADS) if grid is None else VectorDistance(HEADS, grid))


def distances_of_pairs(embedding: nn.Module, grid: Grid, margin: int) -> Tensor:
    """R of every query and every key up to `margin` tokens outside of the grid: (N, channels, H + 2 m, W + 2 m)."""
    queries = torch.cartesian_prod(*(torch.arange(length) for length in grid))
    keys = torch.cartesian_prod(*(torch.arange(-margin, length + margin) for length in grid))
    if isinstance(embedding, VectorDistance):
        of_keys, of_queries = (embedding.vectors[places[:, 0] + 2, places[:, 1] + 2] for places in (keys, queries))
        x = (of_keys - of_queries[:, None]).abs()
    else:  # in the pre-training, 14 tokens cover [-1, 1]
        distance = 2 / 13 * (keys - queries[:, None]).double().square().sum(-1).sqrt()
        x = F.linear(distance[..., None], embedding.proj.weight, embedding.proj.bias)
    return x.transpose(1, 2).unflatten(2, tuple(length + 2 * margin for length in grid))


def phi_p(position: nn.Module, embedding: nn.Module, grid: Grid) -> Tensor:
    """Eq. 6-8: (heads, N, N)."""
    if hasattr(position, 'convs'):
        layers = list(zip(position.convs, position.norms, strict=True))
    else:
        layers = [(position.conv1, position.norm1), (position.conv2, position.norm2)]
    x = distances_of_pairs(embedding, grid, layers[0][0].kernel_size[0] // 2 * len(layers))
    for index, (conv, norm) in enumerate(layers):
        x = F.conv2d(F.relu(x) if index else x, conv.weight, conv.bias)
        mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), correction=0, keepdim=True)
        weight, bias = (value[:, None, None] for value in (norm.weight, norm.bias))
        x = (x - mean) / (variance + 1e-5).sqrt() * weight + bias
    assert x.shape[2:] == grid
    return torch.sigmoid(x).flatten(2).transpose(0, 1)


def attend(weights: Tensor, value: Tensor, layer: nn.Module) -> Tensor:
    """Values, (B, H, W, C), weighted by (..., heads, N, N) that are divided by their sums, and projected."""
    output = weights / weights.sum(-1, keepdim=True) @ split_heads(value, layer.num_heads)
    return layer.proj(output.transpose(1, 2).reshape(value.shape))


def written_out(layer: nn.Module, x: Tensor, embedding: nn.Module) -> Tensor:
    """Eq. 5: the product of both attentions, divided by its sum over the keys."""
    query, key, value = layer.qkv(x).chunk(3, -1)
    query, key = (split_heads(part, layer.num_heads) for part in (query, key))
    content = torch.exp(query @ key.mT / query.shape[-1] ** 0.5)
    return attend(content * phi_p(layer.position, embedding, tuple(x.shape[1:3])), value, layer)


def check(layer: nn.Module, x: Tensor, embedding: nn.Module, want: Tensor | None = None) -> None:
    """The layer gives what is written out; its gradients may be small sums of large numbers."""
    want = written_out(layer, x, embedding) if want is None else want
    inputs = [x, *layer.parameters(), *embedding.parameters()]
    check_formula(layer(x, embedding), want, inputs, gradients=dict(rtol=1e-6, atol=1e-9))


@every_grid
def test_is_the_formula_written_out(grid: Grid, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    check(layer_of(), tokens(grid), embedding_of())


@pytest.mark.parametrize('distance', ['Euclidean', 'of learned vectors'])
@every_grid
@pytest.mark.parametrize('position', list(POSITIONS)[1:])
@pytest.mark.parametrize('rows', ['all rows', 'row by row'])
def test_other_positions_are_the_formula_written_out(
    grid: Grid, position: str, rows: str, distance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows == 'row by row':
        monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 1)
    check(layer_of(position), tokens(grid), embedding_of(grid if 'vectors' in distance else None))


@every_grid
def test_position_alone(grid: Grid) -> None:
    layer, embedding, x = randomized(PositionAttention(CHANNELS, HEADS)), embedding_of(), tokens(grid)
    weights = phi_p(layer.position, embedding, grid)
    check(layer, x, embedding, attend(weights, layer.v(x), layer))
    maps = layer.attention_maps(x, embedding, torch.tensor([0]))
    torch.testing.assert_close(maps['content'].weights, torch.full_like(maps['content'].weights, 1 / len(weights[0])))
    torch.testing.assert_close(maps['attention'].weights, maps['position'].weights.expand(2, -1, -1, -1, -1))


@torch.no_grad()
def test_learned_vectors_on_other_grids() -> None:
    embedding = VectorDistance(HEADS)
    assert embedding.vectors.shape == (18, 18, 4 * HEADS)  # of 14 x 14 tokens, two more on every side
    assert embedding.vectors.std() == pytest.approx(0.02, rel=0.05)
    # Vectors that grow evenly with the place do so on any grid.
    embedding.vectors.copy_(torch.linspace(-1, 1, 18)[:, None, None].expand_as(embedding.vectors))
    for height, width in [(28, 14), (7, 20), (1, 1)]:
        keys, queries = embedding((height, width))
        assert keys.shape[1:] == (height + 4, width + 4) and queries.shape == (4 * HEADS, height, width)
        torch.testing.assert_close(keys, -keys.flip(1))
        assert (keys.diff(dim=1)[:, 1:-1] > 0).all()


@every_grid
@torch.no_grad()
def test_exported_means_of_windows_are_the_same(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    position, distances = layer_of().position, embedding_of()(grid)
    expected = position.hidden_plane(distances)
    monkeypatch.setattr('bioattn_mm.systems.pervit.attention.is_exported', lambda: True)
    monkeypatch.setattr(F, 'avg_pool2d', None)  # its size would be a constant
    torch.testing.assert_close(position.hidden_plane(distances), expected)


@every_grid
@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('backend', ['reference', ''])
@torch.no_grad()
def test_what_analysis_and_the_caches_read_is_the_same(position: str, backend: str, grid: Grid, monkeypatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)  # all cache the plane in eval mode, 'reference' log Phi_p, too
    layer, embedding, x = layer_of(position), embedding_of(), tokens(grid)
    want = phi_p(layer.position, embedding, grid)
    parts = [part.weights[0].flatten(-2) for _, part in layer.position_attention(grid, embedding)]
    torch.testing.assert_close(torch.cat(parts, dim=1), want)
    bias = layer.position_bias(grid, embedding)
    torch.testing.assert_close(bias, want.log() - want.log().amax(-1, keepdim=True))
    *_, last = layer.position.parameters()
    for change in (
        lambda: None,
        lambda: None,
        lambda: embedding.proj.weight.mul_(-1),
        lambda: (layer.train(), last.data.mul_(2), layer.eval()),
    ):
        change()
        torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
        assert len(layer._hidden_planes) == 1
        assert len(layer._position_biases) == (choose_backend(x.device, None) != 'cpu')


@torch.no_grad()
def test_a_grid_that_needs_more_than_the_cache_is_computed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    # For 12 tokens, two heads, float64.
    layer, embedding = layer_of(cache_bytes=2 * 12**2 * 8), embedding_of()
    for grid in ((5, 5), (13, 1), (3, 4)):
        x = tokens(grid)
        torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
        assert len(layer._position_biases) == (grid == (3, 4))


def test_frozen_position_gets_no_gradient() -> None:
    layer, embedding = layer_of(), embedding_of()
    layer.position.requires_grad_(False)
    layer(tokens((3, 4)), embedding).square().sum().backward()
    assert all(parameter.grad is None for parameter in layer.position.parameters())
    # The embedding gets its gradient through the plane of offsets.
    assert layer.qkv.weight.grad.any() and embedding.proj.weight.grad.any()


@pytest.mark.parametrize('mode', ['autocast', 'half weights'])
@pytest.mark.parametrize('position', POSITIONS)
def test_bfloat16_computes_phi_p_in_float32(position: str, mode: str) -> None:
    layer = PeripheralAttention(CHANNELS, HEADS, position=POSITIONS[position])
    embedding, x = DistanceEmbedding(HEADS), torch.randn(2, 5, 6, CHANNELS)
    exact = layer(x, embedding)
    if mode == 'half weights':
        layer, x, embedding = layer.bfloat16(), x.bfloat16(), embedding.bfloat16()
    with torch.autocast('cpu', torch.bfloat16, enabled=mode == 'autocast'):
        output = layer(x, embedding)
        assert layer.position_bias((5, 6), embedding).dtype == torch.float32
    assert output.dtype == torch.bfloat16
    assert (output.float() - exact).abs().max() < 0.03 * exact.abs().max()
    output.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@torch.no_grad()
def test_initial_position_is_local_first() -> None:
    """Eq. 9: the last norm's initial values make the first block local and, but for 'conv', the last one global."""
    for options, depths in (
        (dict(position_init='peripheral'), torch.linspace(0, 1, 12)),
        (dict(position_init='conv'), torch.zeros(12)),
        (PERVIT['Euc'], torch.linspace(0, 1, 12)),  # of a single layer
    ):
        backbone = PerViT(SMALL, **options)
        assert (backbone.distance_embedding.proj.weight == -0.02).all()
        for depth, block in zip(depths, backbone.blocks, strict=True):
            layers = list(block.attn.position.modules())
            assert all((layer.weight == 0.02).all() for layer in layers if isinstance(layer, nn.Conv2d))
            norm = [layer for layer in layers if isinstance(layer, nn.GroupNorm)][-1]
            torch.testing.assert_close(norm.weight, (3 - 2.99 * depth).expand_as(norm.weight))
            torch.testing.assert_close(norm.bias, (9 * depth - 5).expand_as(norm.bias))
        of_centre = backbone.blocks[0].attn.position_bias((9, 9), backbone.distance_embedding)[:, 40].exp()
        assert (of_centre[:, 40] == 1).all() and (of_centre[:, 41] < 1).all() and (of_centre[:, 0] < 0.1).all()


def test_random_initialisation_of_every_parameter() -> None:
    """w_r, both projections and both norms (PerViT, table 5, 'Rand')."""
    backbone = PerViT(SMALL, position_init='random')
    positions = [dict(block.attn.position.named_parameters()) for block in backbone.blocks]
    for value in (backbone.distance_embedding.proj.weight, *(v for each in positions for v in each.values())):
        assert value.unique().numel() == value.numel()
    of_all = {name: torch.cat([each[name] for each in positions]) for name in positions[0]}
    for name, low, high in (('norm2.bias', -5, 4), ('norm2.weight', 0.01, 3)):
        values = of_all[name]
        assert low <= values.min() < values.max() <= high and values.std() > 0.1 * (high - low)
    for name, mean in (('norm1.weight', 1), ('norm1.bias', 0)):
        assert torch.stack(torch.std_mean(of_all[name])).tolist() == pytest.approx([0.02, mean], abs=0.005)


def test_memory_of_the_cache_is_shared_out_among_the_blocks() -> None:
    caches = {block.attn._position_biases.max_bytes for block in PerViT(SMALL, cache_mebibytes=1).blocks}
    assert caches == {2**20 // 12}


@torch.no_grad()
def test_blocks_without_position_leave_the_others_as_they_start() -> None:
    whole = PerViT(SMALL)
    part = PerViT(SMALL, **PERVIT['Phi_c alone in the first two blocks'])
    for index in (2, 11):
        a, b = (m.blocks[index].attn.position_bias((5, 5), m.distance_embedding) for m in (whole, part))
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)  # random biases of R, which the norm subtracts


@torch.no_grad()
def test_deit_is_that_of_timm_without_class_token() -> None:
    theirs = VisionTransformer(
        embed_dim=12, depth=4, num_heads=3, class_token=False, global_pool='avg', fc_norm=False, num_classes=0
    ).eval()
    mixer = dict(type='bioattn_mm.ContentAttention', qkv_bias=True)
    backbone = PerViT(**DEIT, token_mixers=mixer, out_type='avg_featmap').eval()
    names = {name: name.replace('patch_embed.proj.', 'stem.') for name in theirs.state_dict()}
    names['pos_embed'] = 'pos_embed.weight'
    backbone.load_state_dict({names[name]: value for name, value in theirs.state_dict().items()})
    image = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(backbone(image)[0], theirs(image), rtol=1e-4, atol=1e-5)
