"""Multi-head peripheral attention (PerViT, Min et al., NeurIPS 2022), its position-based attention for any grid."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops import peripheral_attention
from ...ops.arguments import full_precision, without_autocast
from ...ops.backends import choose_backend
from ...ops.peripheral_attention import attend, log_phi, query_chunks, without_maximum
from ...ops.portable import hypot, is_exported
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps, maps_of_product
from ..common.building import build_layer
from ..common.hooks import Layers, stacked_parameters, weight_and_bias
from ..common.layout import Grid, head_dims_of, merge_heads, split_heads
from ..common.size_cache import SizeCache, SizeCaching

# Token grid of the pre-training, and the distance of neighbouring tokens on every grid: those cover [-1, 1].
PRETRAIN_GRID = (14, 14)
GRID_STEP = 2 / 13
# Two 3 x 3 convolutions without padding need so many tokens beyond each side of the grid of keys.
KEY_MARGIN = 2
# Channels of R, and hidden channels of Phi_p, for each head.
HIDDEN_RATIO = 4
# Elements of the planes of all offsets that are computed together for several blocks.
MAX_PLANES = 2**20


@MODELS.register_module()
class DistanceEmbedding(nn.Module):
    """R: a linear map of the Euclidean distance of query and key (PerViT, eq. 7), shared by all layers.

    R depends on the offset (key - query) only, and is computed once for each of these.

    Args:
        num_heads: Number of attention heads; R has 4 channels for each.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.proj = nn.Linear(1, HIDDEN_RATIO * num_heads)

    def forward(self, grid: Grid) -> Tensor:
        """R of all offsets on a grid (H, W), up to 2 tokens outside of it: (channels, 2 H + 3, 2 W + 3)."""
        weight, bias = weight_and_bias(self.proj)
        with without_autocast(weight):
            reach = (length - 1 + KEY_MARGIN for length in grid)
            rows, columns = (torch.arange(-r, r + 1, device=weight.device, dtype=weight.dtype) for r in reach)
            distance = GRID_STEP * hypot(rows[:, None], columns)
            return F.linear(distance[..., None], weight, bias).permute(2, 0, 1)


@MODELS.register_module()
class PeripheralPosition(nn.Module):
    """Phi_p, the position-based attention: `sigmoid(IN(conv(ReLU(IN(conv(R))))))` (PerViT, eq. 7-8).

    Convolutions (3 x 3, without padding) and instance norms (IN) run over the keys of each query. The first one runs
    once, on the plane of all offsets (key - query), of which each query needs a window, scaled and shifted by IN.

    Args:
        num_heads: Number of attention heads; the hidden layer has 4 channels for each.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        channels = HIDDEN_RATIO * num_heads
        self.conv1 = nn.Conv2d(channels, channels, 3)
        self.norm1 = nn.GroupNorm(channels, channels)
        self.conv2 = nn.Conv2d(channels, num_heads, 3)
        self.norm2 = nn.GroupNorm(num_heads, num_heads)

    def hidden_plane(self, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`plane`, `scale` and `shift` of `peripheral_attention`: R after the first convolution, and its norm."""
        return normed_plane(distances, *weight_and_bias(self.conv1), *weight_and_bias(self.norm1), self.norm1.eps)

    def forward(self, hidden: tuple[Tensor, Tensor, Tensor], rows: slice, columns: slice) -> Tensor:
        """log Phi_p of the queries in some rows and columns, slices with start and stop: (heads, queries, H * W)."""
        conv, norm = self.conv2, self.norm2
        return log_phi((*hidden, *weight_and_bias(conv), *weight_and_bias(norm), norm.eps), rows, columns)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Attention weighted by Phi_p, of queries, keys and values (B, heads, H * W, d): of the same shape."""
        conv, norm = self.conv2, self.norm2
        position = *hidden, *weight_and_bias(conv), *weight_and_bias(norm), norm.eps
        return peripheral_attention(query, key, value, *position)


@MODELS.register_module()
class PeripheralAttention(SizeCaching):
    """Multi-head peripheral attention: content-based attention weighted by position-based attention.

    Source: PerViT (Min et al., NeurIPS 2022), eq. 5: `A = normalize(Phi_c * Phi_p)` with `Phi_c = exp(q k^T /
    sqrt(d))`, here as the softmax of `q k^T / sqrt(d) + log Phi_p`, in which neither can overflow or vanish.

    Memory is linear in the number of tokens. The compiled operator computes log Phi_p each time; in PyTorch, as on a
    GPU, that takes several times as long as the attention itself, so in eval mode it is cached for each grid. What
    comes before the queries, the plane after the first convolution, is cached for two grids with any backend.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        cache_bytes: Limit of the cache in bytes. A grid of N tokens that needs more, heads * N * N numbers, is not
            cached.
        position: Position-based attention, a layer by its name: `PeripheralPosition`, or one of those that the paper
            compares it with (`ablations`).
        qkv_bias: Biases of queries, keys and values; PerViT has none.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        cache_bytes: int = 2**29,
        position: dict | None = None,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.build_projection(embed_dims, qkv_bias)
        self.position = build_layer(position or dict(type=PeripheralPosition), num_heads=num_heads)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self._position_biases = SizeCache(max_bytes=cache_bytes)
        self._hidden_planes = SizeCache(max_sizes=2)

    def build_projection(self, embed_dims: int, bias: bool) -> None:
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=bias)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, W, C) to three of (B, heads, H * W, d)."""
        return split_heads(self.qkv(x), 3, self.num_heads)

    def forward(
        self,
        x: Tensor,
        distance_embedding: DistanceEmbedding,
        distances: Tensor | None = None,
        hidden: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        """(B, H, W, C) to (B, H, W, C).

        `distances` is what the embedding gives for (H, W), `hidden` the hidden plane of these, if they are known.
        """
        query, key, value = self.query_key_value(x)
        grid = tuple(x.shape[1:3])
        if hidden is None and distances is None and self._is_kept(grid, query):
            compute = partial(self.position_bias, grid, distance_embedding, query.dtype)
            bias = self._position_biases.get(self, (grid, query.dtype), compute, shared=distance_embedding)
            output = attend(query, key, value, bias)
        else:
            if hidden is None:
                hidden = self._hidden_plane(grid, distance_embedding, distances)
            output = self.position.attend(query, key, value, hidden)
        return self.proj(merge_heads(output, x.shape))

    def position_bias(
        self, grid: Grid, distance_embedding: DistanceEmbedding, dtype: torch.dtype | None = None
    ) -> Tensor:
        """log Phi_p of all pairs of tokens, (heads, H * W, H * W), minus the maximum of each query."""
        hidden = self._hidden_plane(grid, distance_embedding)
        num_tokens = grid[0] * grid[1]
        bias = hidden[0].new_empty(self.num_heads, num_tokens, num_tokens, dtype=dtype)
        for queries, rows, columns in self._query_chunks(grid, bias.device):
            bias[:, queries] = without_maximum(self.position(hidden, rows, columns))
        return bias

    def attention_maps(
        self, x: Tensor, distance_embedding: DistanceEmbedding, queries: Tensor, distances: Tensor | None = None
    ) -> AttentionMaps:
        """Phi_c ('content') and Phi_p ('position') divided by their sums over the keys, and 'attention'."""
        content, position = self._logits(x, distance_embedding, queries)
        return maps_of_product(content, without_maximum(position).to(content.dtype), tuple(x.shape[1:3]))

    def unnormalised_maps(self, x: Tensor, distance_embedding: DistanceEmbedding, queries: Tensor) -> AttentionMaps:
        """Phi_c, Phi_p and their product Phi_a, as eq. 3, 5 and 8 of PerViT define them, in float64."""
        content, position = (logits.double().exp() for logits in self._logits(x, distance_embedding, queries))
        phi = dict(content=content, position=position[None], attention=content * position)
        return {name: AttentionMap.of_grid(weights, tuple(x.shape[1:3])) for name, weights in phi.items()}

    def position_attention(
        self, grid: Grid, distance_embedding: DistanceEmbedding
    ) -> Iterator[tuple[Tensor, AttentionMap]]:
        """Phi_p of all queries on a grid, in chunks: indices of the queries, int64, and their Phi_p, from 0 to 1."""
        hidden = self._hidden_plane(grid, distance_embedding)
        for queries, rows, columns in self._query_chunks(grid, hidden[0].device):
            phi = self.position(hidden, rows, columns).exp()[None]
            yield torch.arange(queries.start, queries.stop, device=phi.device), AttentionMap.of_grid(phi, grid)

    def _hidden_plane(
        self, grid: Grid, distance_embedding: DistanceEmbedding, distances: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """What Phi_p of all queries on a grid has in common."""
        if distances is None:
            distances = distance_embedding(grid)
        if torch.is_grad_enabled():  # nothing is kept
            return self.position.hidden_plane(distances)
        compute = partial(self.position.hidden_plane, distances)
        return self._hidden_planes.get(self.position, grid, compute, shared=distance_embedding)

    def _logits(self, x: Tensor, distance_embedding: DistanceEmbedding, queries: Tensor) -> tuple[Tensor, Tensor]:
        """log Phi_c, (B, heads, queries, H * W), and log Phi_p, (heads, queries, H * W), of some queries."""
        query, key, _ = self.query_key_value(x)
        hidden = self._hidden_plane(tuple(x.shape[1:3]), distance_embedding)
        places = [divmod(place, x.shape[2]) for place in queries.tolist()]
        position = [self.position(hidden, slice(i, i + 1), slice(j, j + 1)) for i, j in places]
        return query[:, :, queries] @ key.transpose(-2, -1) * query.shape[-1] ** -0.5, torch.cat(position, dim=1)

    def _query_chunks(self, grid: Grid, device: torch.device) -> Iterator[tuple[slice, slice, slice]]:
        return query_chunks(grid, self.num_heads, HIDDEN_RATIO * self.num_heads, batch=0, device=device)

    def _is_kept(self, grid: Grid, query: Tensor) -> bool:
        """Whether log Phi_p of a grid is cached in the present mode."""
        num_bytes = self.num_heads * (grid[0] * grid[1]) ** 2 * query.dtype.itemsize
        fits = self._position_biases.is_open(self) and num_bytes <= self._position_biases.max_bytes
        return fits and choose_backend(query.device, None) != 'cpu'


OF_PLANES: Layers = [
    ((), PeripheralAttention, ()),
    (('position',), PeripheralPosition, ()),
    (('position', 'conv1'), nn.Conv2d, ('weight', 'bias')),
    (('position', 'norm1'), nn.GroupNorm, ('weight', 'bias')),
]


def hidden_planes(blocks: Sequence[nn.Module], distances: Tensor) -> Iterator[tuple[Tensor, ...] | None]:
    """`hidden` of `PeripheralAttention.forward` of each of some blocks, computed together in training, or None."""
    layers = [block.attn for block in blocks]
    stacked = stacked_parameters(layers, OF_PLANES, *blocks)
    if stacked is None:
        yield from repeat(None)
    # Planes of large grids take memory, and their kernels long enough: then of some blocks at a time.
    for each in zip(*(column.split(max(1, MAX_PLANES // distances.numel())) for column in stacked)):
        parameters = (full_precision(column.flatten(0, 1)) for column in each)
        planes = normed_plane(distances, *parameters, layers[0].position.norm1.eps)
        yield from zip(*(plane.unflatten(0, each[1].shape).unbind() for plane in planes))


def normed_plane(
    distances: Tensor, conv_weight: Tensor, conv_bias: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`PeripheralPosition.hidden_plane` with the parameters of its convolution and norm, or with those of several."""
    with without_autocast(distances):
        plane = F.conv2d(distances, conv_weight, conv_bias)
        _, height, width = plane.shape
        # Variance as mean of squares minus square of mean: float64, because the difference loses digits.
        exact = plane.double()
        means = _window_mean(torch.stack((exact, exact * exact)), (height // 2 + 2, width // 2 + 2))
        mean, mean_of_squares = means.unbind()
        variance = (mean_of_squares - mean * mean).relu()
        scale = weight[:, None, None] * (variance + eps).rsqrt()
        return plane, scale.to(plane.dtype), (bias[:, None, None] - mean * scale).to(plane.dtype)


def _window_mean(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Mean of every window, axis by axis: (..., C, H, W) to (..., C, H - h + 1, W - w + 1)."""
    if not is_exported():
        return F.avg_pool2d(F.avg_pool2d(x, (window[0], 1), 1), (1, window[1]), 1)
    # The size of a pooling is a constant in a graph; differences of sums of what comes before are none.
    for axis, length in zip((-2, -1), window):
        sums = F.pad(x.cumsum(axis), (1, 0) if axis == -1 else (0, 0, 1, 0))
        number = sums.shape[axis] - length
        x = (sums.narrow(axis, length, number) - sums.narrow(axis, 0, number)) / length
    return x
