"""Multi-head peripheral attention of PerViT, its position-based attention computed for any grid."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import peripheral_attention
from ..ops.arguments import without_autocast
from ..ops.backends import choose_backend
from ..ops.peripheral_attention import attend, log_phi, query_chunks, without_maximum
from ..ops.portable import hypot, is_exported
from ..registry import MODELS
from .arguments import head_dims_of, weight_and_bias
from .attention_maps import AttentionMap, AttentionMaps, maps_of_product
from .building import build_layer
from .grid import Grid
from .heads import merge_heads, split_heads
from .size_cache import SizeCache

# Token grid of the pre-training.
PRETRAIN_GRID = (14, 14)
# Distance of neighbouring tokens on every grid. In the pre-training the tokens cover [-1, 1].
GRID_STEP = 2 / 13
# Two 3 x 3 convolutions without padding need so many tokens beyond each side of the grid of keys.
KEY_MARGIN = 2
# Hidden channels of Phi_p for each head.
HIDDEN_RATIO = 4


@MODELS.register_module()
class DistanceEmbedding(nn.Module):
    """R: a linear map of the Euclidean distance of query and key (PerViT, eq. 7), shared by all layers.

    R depends on the offset (key - query) only, so it is computed once for each offset instead of each pair of tokens.

    Args:
        num_heads: Number of attention heads; R has 4 channels for each.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.proj = nn.Linear(1, HIDDEN_RATIO * num_heads)

    def forward(self, grid: Grid) -> Tensor:
        """R of all offsets on a grid (height, width): float32 or float64, (channels, 2 H + 3, 2 W + 3).

        Keys lie up to 2 tokens outside the grid, so the offsets along an axis of length L are -(L + 1) to L + 1.
        """
        weight, bias = weight_and_bias(self.proj)
        with without_autocast(weight):
            reach = (length - 1 + KEY_MARGIN for length in grid)
            rows, columns = (torch.arange(-r, r + 1, device=weight.device, dtype=weight.dtype) for r in reach)
            distance = GRID_STEP * hypot(rows[:, None], columns)
            return F.linear(distance[..., None], weight, bias).permute(2, 0, 1)

    def init_as_decreasing(self) -> None:
        """Initialise R as a function that falls with the distance (PerViT, eq. 9)."""
        # The bias has no effect, as the first instance norm subtracts it.
        nn.init.constant_(self.proj.weight, -0.02)

    def init_randomly(self) -> None:
        """Nothing: a linear layer of PyTorch starts with random values."""


@MODELS.register_module()
class PeripheralPosition(nn.Module):
    """Phi_p, the position-based attention: `sigmoid(IN(conv(ReLU(IN(conv(R))))))` (PerViT, eq. 7-8).

    The 3 x 3 convolutions (without padding) and the instance norms (IN) run over the keys of each query. The first
    convolution depends on the offset (key - query) only: it is computed once, on the plane of all offsets, of which
    each query needs a window. The first norm scales and shifts that window, with its mean and variance
    (`hidden_plane`). The rest is computed for each query (`forward`).

    Args:
        num_heads: Number of attention heads; the hidden layer has 4 channels for each.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        hidden_channels = HIDDEN_RATIO * num_heads
        self.conv1 = nn.Conv2d(hidden_channels, hidden_channels, 3)
        self.norm1 = nn.GroupNorm(hidden_channels, hidden_channels)
        self.conv2 = nn.Conv2d(hidden_channels, num_heads, 3)
        self.norm2 = nn.GroupNorm(num_heads, num_heads)

    @torch.no_grad()
    def init_as_local(self, norm_weight: float, norm_bias: float) -> None:
        """Initialise Phi_p as a decreasing function of the distance (PerViT, eq. 9), provided that R is one.

        Args:
            norm_weight: Weight of the second norm: how strongly Phi_p depends on the distance.
            norm_bias: Bias of the second norm: the level of Phi_p before the sigmoid.
        """
        nn.init.constant_(self.conv1.weight, 0.02)
        nn.init.constant_(self.conv2.weight, 0.02)
        nn.init.constant_(self.norm2.weight, norm_weight)
        nn.init.constant_(self.norm2.bias, norm_bias)

    def init_randomly(self) -> None:
        """Initialise the norms with random values, as the convolutions are (see `randomize_norms`)."""
        randomize_norms((self.norm1, self.norm2))

    def hidden_plane(self, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The first convolution for all offsets, and the first norm for all queries.

        Args:
            distances: R, (channels, 2 H + 3, 2 W + 3).

        Returns:
            `plane`, (channels, 2 H + 1, 2 W + 1), and `scale` and `shift`, (channels, H, W). A query's window has the
            size (H + 2, W + 2); if it starts at (i, j) of the plane, its norm is `scale[:, i, j] * window + shift[:,
            i, j]`.
        """
        weight, bias = weight_and_bias(self.conv1)
        with without_autocast(distances):
            plane = F.conv2d(distances, weight, bias)
            window = tuple(length // 2 + 2 for length in plane.shape[1:])
            return plane, *norm_of_windows(plane, window, self.norm1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Attention weighted by Phi_p.

        Args:
            query: (B, heads, H * W, d).
            key: (B, heads, H * W, d).
            value: (B, heads, H * W, d).
            hidden: Result of `hidden_plane`.

        Returns:
            (B, heads, H * W, d).
        """
        return peripheral_attention(query, key, value, *hidden, *self.query_parameters(), self.norm2.eps)

    def forward(self, hidden: tuple[Tensor, Tensor, Tensor], rows: slice, columns: slice) -> Tensor:
        """log Phi_p of the queries in a rectangle of the grid.

        Args:
            hidden: Result of `hidden_plane`.
            rows: Rows of the queries; start and stop have to be given.
            columns: Columns of the queries, the same.

        Returns:
            (heads, queries, H * W), float32 or float64. The maximum over each query's keys is subtracted
            (`without_maximum`).
        """
        return without_maximum(self.log_phi(hidden, rows, columns))

    def log_phi(self, hidden: tuple[Tensor, Tensor, Tensor], rows: slice, columns: slice) -> Tensor:
        """log Phi_p as in `forward`, but without subtracting the maximum."""
        return log_phi(*hidden, *self.query_parameters(), self.norm2.eps, rows, columns)

    def query_parameters(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The parameters of what is computed for each query, in at least float32."""
        return *weight_and_bias(self.conv2), *weight_and_bias(self.norm2)


@MODELS.register_module()
class PeripheralAttention(nn.Module):
    """Multi-head peripheral attention: content-based attention weighted by position-based attention.

    Source: PerViT (Min et al., NeurIPS 2022), eq. 5: `A = normalize(Phi_c * Phi_p)` with `Phi_c = exp(q k^T /
    sqrt(d))`, normalised to a sum of 1 over the keys. This is the softmax of `q k^T / sqrt(d) + log Phi_p`: log Phi_p
    is an additive mask of scaled dot-product attention, and neither factor can overflow or vanish.

    log Phi_p and attention are computed for one block of queries at a time, and computed again in the backward pass,
    so memory is linear in the number of tokens (`bioattn_mm.ops.peripheral_attention`).

    log Phi_p depends on parameters and grid only. Where PyTorch computes it, as on a GPU, that takes several times as
    long as the attention itself, so in eval mode it is cached for each grid. The compiled operator, which takes about
    a third longer than the attention alone, computes it anew.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        cache_bytes: Memory limit of the cache in bytes. N tokens need heads * N * N numbers; a grid that needs more
            than the limit is not cached.
        position: Position-based attention, a layer by its name: `PeripheralPosition`, or one of those that the paper
            compares it with (`peripheral_variants`).
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
        self.num_heads = num_heads
        self.head_dims = head_dims_of(embed_dims, num_heads)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.position = build_layer(position or dict(type=PeripheralPosition), num_heads=num_heads)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self._position_biases = SizeCache(max_bytes=cache_bytes)

    def forward(self, x: Tensor, distance_embedding: DistanceEmbedding) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        grid = tuple(x.shape[1:3])
        query, key, value = self._query_key_value(x)
        if self._is_kept(grid, query):
            output = attend(query, key, value, self._kept_bias(grid, distance_embedding, query.dtype))
        else:
            output = self.position.attend(query, key, value, self.position.hidden_plane(distance_embedding(grid)))
        return self.proj(merge_heads(output, x.shape))

    def position_bias(
        self, grid: Grid, distance_embedding: DistanceEmbedding, dtype: torch.dtype | None = None
    ) -> Tensor:
        """log Phi_p of all pairs of tokens, (heads, H * W, H * W), minus the maximum of each query."""
        hidden = self.position.hidden_plane(distance_embedding(grid))
        num_tokens = grid[0] * grid[1]
        bias = hidden[0].new_empty(self.num_heads, num_tokens, num_tokens, dtype=dtype)
        for queries, rows, columns in self._query_chunks(grid, bias.device):
            bias[:, queries] = self.position(hidden, rows, columns)
        return bias

    def attention_maps(self, x: Tensor, distance_embedding: DistanceEmbedding, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis.

        Args:
            x: (B, H, W, C).
            distance_embedding: As in `forward`.
            queries: Their indices in the row-major order of the grid, int64 (queries,).

        Returns:
            'content' and 'position', Phi_c and Phi_p divided by their sums over the keys, and 'attention', their
            product divided by its own.
        """
        grid = tuple(x.shape[1:3])
        query, key, _ = self._query_key_value(x)
        content = query[:, :, queries] @ key.transpose(-2, -1) * self.head_dims**-0.5
        if self._is_kept(grid, query):
            bias = self._kept_bias(grid, distance_embedding, query.dtype)[:, queries]
        else:
            hidden = self.position.hidden_plane(distance_embedding(grid))
            places = [divmod(place, grid[1]) for place in queries.tolist()]
            bias = [self.position(hidden, slice(i, i + 1), slice(j, j + 1)) for i, j in places]
            bias = torch.cat(bias, dim=1).to(query.dtype)
        return {name: AttentionMap.of_grid(t, grid) for name, t in maps_of_product(content, bias).items()}

    def unnormalised_maps(self, x: Tensor, distance_embedding: DistanceEmbedding, queries: Tensor) -> AttentionMaps:
        """Phi_c, Phi_p and their product Phi_a of some queries, as eq. 3, 5 and 8 define them, for analysis.

        Returns:
            'content', 'position' and 'attention', float64: no exponential of a usual logit is too large for it.
        """
        grid = tuple(x.shape[1:3])
        query, key, _ = self._query_key_value(x)
        logits = (query[:, :, queries] @ key.transpose(-2, -1)).double() * self.head_dims**-0.5
        hidden = self.position.hidden_plane(distance_embedding(grid))
        places = [divmod(place, grid[1]) for place in queries.tolist()]
        position = [self.position.log_phi(hidden, slice(i, i + 1), slice(j, j + 1)) for i, j in places]
        content, position = logits.exp(), torch.cat(position, dim=1).double().exp()[None]
        phi = dict(content=content, position=position, attention=content * position)
        return {name: AttentionMap.of_grid(weights, grid) for name, weights in phi.items()}

    def position_attention(
        self, grid: Grid, distance_embedding: DistanceEmbedding
    ) -> Iterator[tuple[Tensor, AttentionMap]]:
        """Phi_p of all queries on a grid, in chunks of queries; it does not depend on an image.

        Yields:
            Indices of the queries in the row-major order of the grid, int64, and their Phi_p, from 0 to 1.
        """
        hidden = self.position.hidden_plane(distance_embedding(grid))
        for queries, rows, columns in self._query_chunks(grid, hidden[0].device):
            phi = self.position.log_phi(hidden, rows, columns).exp()[None]
            places = torch.arange(queries.start, queries.stop, device=phi.device)
            yield places, AttentionMap.of_grid(phi, grid)

    def train(self, mode: bool = True) -> 'PeripheralAttention':
        self._position_biases.clear()
        return super().train(mode)

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, W, C) to three of (B, heads, H * W, d)."""
        return split_heads(self.qkv(x), 3, self.num_heads)

    def _query_chunks(self, grid: Grid, device: torch.device) -> Iterator[tuple[slice, slice, slice]]:
        """Chunks of queries to compute log Phi_p for, without attention."""
        return query_chunks(grid, self.num_heads, HIDDEN_RATIO * self.num_heads, batch=0, device=device)

    def _is_kept(self, grid: Grid, query: Tensor) -> bool:
        """Whether log Phi_p of a grid is cached in the present mode."""
        num_bytes = self.num_heads * (grid[0] * grid[1]) ** 2 * query.dtype.itemsize
        fits = self._position_biases.is_open(self) and num_bytes <= self._position_biases.max_bytes
        return fits and choose_backend(query.device, None) != 'cpu'

    def _kept_bias(self, grid: Grid, distance_embedding: DistanceEmbedding, dtype: torch.dtype) -> Tensor:
        """`position_bias`, from the cache if it is there."""
        compute = partial(self.position_bias, grid, distance_embedding, dtype)
        return self._position_biases.get(self, (grid, dtype), compute, shared=distance_embedding)


@torch.no_grad()
def randomize_norms(norms: Sequence[nn.GroupNorm]) -> None:
    """Random initial values of the norms of Phi_p (PerViT, table 5, 'Rand': all parameters are random).

    The paper does not say how they are drawn. Here those of the last norm are even over the ranges of the peripheral
    initial values, 0.01 to 3 and -5 to 4, for each head and layer, and those before it are normal with a deviation of
    0.02 around 1 and 0.
    """
    for norm in norms[:-1]:
        nn.init.normal_(norm.weight, 1, 0.02)
        nn.init.normal_(norm.bias, 0, 0.02)
    nn.init.uniform_(norms[-1].weight, 0.01, 3)
    nn.init.uniform_(norms[-1].bias, -5, 4)


def norm_of_windows(plane: Tensor, window: tuple[int, int], norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
    """An instance norm of every window of a plane, as a factor and what is added after it.

    Args:
        plane: (C, H, W), float32 or float64.
        window: (h, w).
        norm: The norm, of C channels.

    Returns:
        Two of (C, H - h + 1, W - w + 1) in the dtype of the plane: the norm of the window that starts at (i, j) is
        `scale[:, i, j] * window + shift[:, i, j]`.
    """
    norm_weight, norm_bias = weight_and_bias(norm)
    # Variance as mean of squares minus square of mean: float64, because the difference loses digits.
    exact = plane.double()
    mean = _window_mean(exact, window)
    variance = (_window_mean(exact.square(), window) - mean.square()).clamp(min=0)
    scale = norm_weight[:, None, None] * (variance + norm.eps).rsqrt()
    shift = norm_bias[:, None, None] - mean * scale
    return scale.to(plane.dtype), shift.to(plane.dtype)


def _window_mean(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Mean of every window, axis by axis: (C, H, W) to (C, H - h + 1, W - w + 1)."""
    if not is_exported():
        return F.avg_pool2d(F.avg_pool2d(x, (window[0], 1), 1), (1, window[1]), 1)
    # The size of a pooling is a constant in a graph; differences of sums of what comes before are none.
    for axis, length in zip((1, 2), window):
        padding = (1, 0) if axis == 2 else (0, 0, 1, 0)
        sums = F.pad(x.cumsum(axis), padding)
        number = sums.shape[axis] - length
        x = (sums.narrow(axis, length, number) - sums.narrow(axis, 0, number)) / length
    return x
