"""What PerViT's ablations put in place of its peripheral attention, of Phi_p, and of the distances."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..ops.arguments import without_autocast
from ..ops.chunked_attention import attention_in_chunks
from ..ops.peripheral_attention import without_maximum
from ..registry import MODELS
from .arguments import full_precision, weight_and_bias
from .attention_maps import AttentionMaps
from .baseline_attention import SoftmaxAttention
from .grid import Grid
from .heads import split_heads
from .peripheral_attention import (
    HIDDEN_RATIO,
    KEY_MARGIN,
    PRETRAIN_GRID,
    PeripheralAttention,
    randomize_norms,
)
from .resizing import resize_bicubic


@MODELS.register_module()
class PositionAttention(PeripheralAttention):
    """Attention by position alone, `A = normalize(Phi_p)`: the same weights for every image.

    Source: PerViT (Min et al., NeurIPS 2022), table 1, 'Phi_p' without 'Phi_c'. Queries and keys, which nothing would
    depend on, are not built; the paper does not say whether its own have them. The arguments are those of
    `PeripheralAttention`; `qkv_bias` is of the values.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        cache_bytes: int = 2**29,
        position: dict | None = None,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__(embed_dims, num_heads, cache_bytes, position, qkv_bias)
        del self.qkv
        self.v = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, W, C) to three of (B, heads, H * W, d); queries of 0 find all keys alike."""
        (value,) = split_heads(self.v(x), 1, self.num_heads)
        zeros = torch.zeros_like(value)
        return zeros, zeros, value


@MODELS.register_module()
class ContentAttention(SoftmaxAttention):
    """Attention by content alone, `A = normalize(Phi_c)`: self-attention, in a block that has distances, too.

    Source: PerViT (Min et al., NeurIPS 2022), table 1, 'Phi_c' without 'Phi_p'.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        qkv_bias: Biases of queries, keys and values; PerViT has none.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = False) -> None:
        super().__init__(embed_dims, num_heads, qkv_bias)

    def forward(self, x: Tensor, distance_embedding: nn.Module) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); the distances are not used."""
        return super().forward(x)

    def attention_maps(self, x: Tensor, distance_embedding: nn.Module, queries: Tensor) -> AttentionMaps:
        return super().attention_maps(x, queries)


class LearnedVectors(NamedTuple):
    """R of `VectorDistance`: vectors of the keys and of the queries, whose distances it is.

    Attributes:
        keys: Those of the grid and of 2 tokens beyond each side of it, (channels, H + 4, W + 4).
        queries: Those of the grid, (channels, H, W).
    """

    keys: Tensor
    queries: Tensor


@MODELS.register_module()
class VectorDistance(nn.Module):
    """R as the distance between learned vectors of the places of query and key, channel by channel: `|e_k - e_q|`.

    Source: PerViT (Min et al., NeurIPS 2022), section 4.2 and table 5, 'Lrn'. The paper says no more of them. Chosen
    here: a vector for each place of the grid and of the margin of 2 tokens that the neighbourhoods reach; the
    absolute value in each channel as the distance; small random values at the start, as of position embeddings, so
    that Phi_p does not start as a function of the distance; on other grids than that of the pre-training the vectors
    are resized (bicubic).

    Args:
        num_heads: Number of attention heads; R has 4 channels for each.
        grid: Token grid (height, width) of the pre-training.
    """

    def __init__(self, num_heads: int, grid: Grid = PRETRAIN_GRID) -> None:
        super().__init__()
        self.grid = tuple(grid)
        self.vectors = nn.Parameter(
            trunc_normal_(torch.empty(*_with_margin(self.grid), HIDDEN_RATIO * num_heads), std=0.02)
        )

    def forward(self, grid: Grid) -> LearnedVectors:
        """The vectors of the places of a grid (height, width), float32 or float64."""
        vectors = full_precision(self.vectors)
        if tuple(grid) != self.grid:
            with without_autocast(vectors):
                vectors = resize_bicubic(vectors, _with_margin(grid))
        vectors = vectors.permute(2, 0, 1).contiguous()
        return LearnedVectors(vectors, vectors[:, KEY_MARGIN:-KEY_MARGIN, KEY_MARGIN:-KEY_MARGIN])

    def init_as_decreasing(self) -> None:
        """Nothing: learned vectors do not know the distance."""

    def init_randomly(self) -> None:
        """Nothing: they are random."""


@MODELS.register_module()
class VariedPosition(nn.Module):
    """Phi_p of one or two layers, with or without the neighbourhood of each key, of any R.

    Each layer is a projection of R, or of the layer before, and an instance norm, with a ReLU between two:
    `sigmoid(IN(proj(R)))` or `sigmoid(IN(proj(ReLU(IN(proj(R))))))`. With a neighbourhood the projection is a 3 x 3
    convolution over the keys of a query (PerViT, eq. 7), without one a linear map, 1 x 1 (eq. 6).

    Source: PerViT (Min et al., NeurIPS 2022), table 5, of whose rows the first is `PeripheralPosition`, which is the
    same as this with its defaults and faster. The norms, of which eq. 6 says nothing, stay in all rows, because the
    initial values (eq. 9) are those of the last one. It is computed for some rows of queries at a time, and again in
    the backward pass, so that memory is bounded on a CPU.

    Args:
        num_heads: Number of attention heads; the hidden layer has 4 channels for each.
        with_neighbours: 3 x 3 keys (the paper's script N), or the key alone.
        num_layers: 2 (the paper's ML), or 1.

    Raises:
        InputError: There are not one or two layers.
    """

    def __init__(self, num_heads: int, with_neighbours: bool = True, num_layers: int = 2) -> None:
        super().__init__()
        if num_layers not in (1, 2):
            raise InputError(f'num_layers of Phi_p must be 1 or 2, got {num_layers!r}')
        channels = HIDDEN_RATIO * num_heads
        kernel_size = 3 if with_neighbours else 1
        widths = (channels,) * num_layers + (num_heads,)
        self.margin = num_layers * (kernel_size // 2)
        self.convs = nn.ModuleList(nn.Conv2d(*pair, kernel_size) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(width, width) for width in widths[1:])

    @torch.no_grad()
    def init_as_local(self, norm_weight: float, norm_bias: float) -> None:
        """As `PeripheralPosition.init_as_local`."""
        for conv in self.convs:
            nn.init.constant_(conv.weight, 0.02)
        nn.init.constant_(self.norms[-1].weight, norm_weight)
        nn.init.constant_(self.norms[-1].bias, norm_bias)

    def init_randomly(self) -> None:
        """As `PeripheralPosition.init_randomly`."""
        randomize_norms(self.norms)

    def hidden_plane(self, distances: Tensor | LearnedVectors) -> tuple[Tensor, ...]:
        """What `log_phi` takes: R of all offsets, or the vectors of keys and queries."""
        return (distances,) if isinstance(distances, Tensor) else distances

    def forward(self, hidden: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """As `PeripheralPosition.forward`."""
        return without_maximum(self.log_phi(hidden, rows, columns))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: tuple[Tensor, ...]) -> Tensor:
        """As `PeripheralPosition.attend`."""
        grid = _grid_of(hidden)
        query, key, value = (tensor.transpose(1, 2).unflatten(1, grid) for tensor in (query, key, value))

        def bias_of_rows(rows: slice) -> Tensor:
            return self(hidden, rows, slice(0, grid[1]))

        output = attention_in_chunks(query, key, value, bias_of_rows, query.shape[-1] ** -0.5)
        return output.flatten(1, 2).transpose(1, 2)

    def log_phi(self, hidden: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """As `PeripheralPosition.log_phi`."""
        x = self._distances(hidden, rows, columns)
        with without_autocast(x):
            for conv, norm in zip(self.convs, self.norms):
                x = x if conv is self.convs[0] else x.relu()
                # torch.group_norm, because F.group_norm raises an error for a single token.
                x = torch.group_norm(
                    F.conv2d(x, *weight_and_bias(conv)), norm.num_groups, *weight_and_bias(norm), norm.eps
                )
        return F.logsigmoid(x).flatten(2).transpose(0, 1)

    def _distances(self, hidden: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """R of the queries in a rectangle and of all keys with the margin: (queries, channels, H + 2 m, W + 2 m)."""
        inner = slice(KEY_MARGIN - self.margin, -(KEY_MARGIN - self.margin) or None)
        if len(hidden) == 2:
            keys, queries = hidden[0][:, inner, inner], hidden[1][:, rows, columns]
            return (keys - queries.flatten(1).T[:, :, None, None]).abs()
        windows, (starts, lengths) = (
            hidden[0][:, inner, inner],
            zip(*((range(length)[places], length) for places, length in zip((rows, columns), _grid_of(hidden)))),
        )
        for axis, length in enumerate(lengths, start=1):
            windows = windows.unfold(axis, length + 2 * self.margin, 1)
        # The window of a query in row i starts at row H - 1 - i: windows are in the reverse order of queries.
        windows = windows.flip(1, 2)[:, starts[0].start : starts[0].stop, starts[1].start : starts[1].stop]
        return windows.flatten(1, 2).transpose(0, 1)


def _grid_of(hidden: tuple[Tensor, ...]) -> Grid:
    """The grid that `VariedPosition.hidden_plane` is of."""
    if len(hidden) == 2:
        return tuple(hidden[1].shape[1:])
    return tuple((length + 1) // 2 - KEY_MARGIN for length in hidden[0].shape[1:])


def _with_margin(grid: Grid) -> Grid:
    return tuple(length + 2 * KEY_MARGIN for length in grid)
