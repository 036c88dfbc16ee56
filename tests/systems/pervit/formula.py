"""Attention of PerViT and of its ablations, computed for all pairs of tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention, VectorDistance
from tests.systems.layers import check_formula, randomized, split_heads

CHANNELS, HEADS = 12, 2
Grid = tuple[int, int]
GRIDS = [(4, 4), (3, 7), (5, 2), (1, 6), (1, 1)]
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


def tokens(grid: Grid) -> Tensor:
    return torch.randn(3, *grid, CHANNELS, dtype=torch.float64, requires_grad=True)


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


def phi_c(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Phi_c, (B, heads, N, N), and the values, (B, H, W, C)."""
    query, key, value = layer.qkv(x).chunk(3, -1)
    query, key = (split_heads(part, layer.num_heads) for part in (query, key))
    return torch.exp(query @ key.mT / query.shape[-1] ** 0.5), value


def attend(weights: Tensor, value: Tensor, layer: nn.Module) -> Tensor:
    """Values, (B, H, W, C), weighted by (..., heads, N, N) that are divided by their sums, and projected."""
    output = weights / weights.sum(-1, keepdim=True) @ split_heads(value, layer.num_heads)
    return layer.proj(output.transpose(1, 2).reshape(value.shape))


def written_out(layer: nn.Module, x: Tensor, embedding: nn.Module) -> Tensor:
    """Eq. 5: the product of both attentions, divided by its sum over the keys."""
    content, value = phi_c(layer, x)
    return attend(content * phi_p(layer.position, embedding, tuple(x.shape[1:3])), value, layer)


def check(layer: nn.Module, x: Tensor, embedding: nn.Module, want: Tensor | None = None) -> None:
    """The layer gives what is written out; its gradients may be small sums of large numbers."""
    want = written_out(layer, x, embedding) if want is None else want
    inputs = [x, *layer.parameters(), *embedding.parameters()]
    check_formula(layer(x, embedding), want, inputs, gradients=dict(rtol=1e-6, atol=1e-9))
