"""What PerViT's ablations put in place of its peripheral attention, of Phi_p, and of the distances."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ...ops.arguments import full_precision, without_autocast
from ...ops.chunked_attention import attention_in_chunks
from ...ops.peripheral_attention import without_maximum
from ...registry import MODELS
from ..common.attention_maps import AttentionMaps
from ..common.blocks import SoftmaxAttention
from ..common.hooks import weight_and_bias
from ..common.layout import Grid, split_heads
from ..common.resizing import resize_bicubic
from .attention import HIDDEN_RATIO, KEY_MARGIN, PRETRAIN_GRID, PeripheralAttention


@MODELS.register_module()
class PositionAttention(PeripheralAttention):
    """Attention by position alone, `A = normalize(Phi_p)`: the same weights for every image.

    Source: PerViT (Min et al., NeurIPS 2022), table 1, 'Phi_p' without 'Phi_c'. Queries and keys, which nothing would
    depend on, are not built. The arguments are those of `PeripheralAttention`; `qkv_bias` is of the values.
    """

    def build_projection(self, embed_dims: int, bias: bool) -> None:
        self.v = nn.Linear(embed_dims, embed_dims, bias=bias)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, W, C) to three of (B, heads, H * W, d); queries of 0 find all keys alike."""
        (value,) = split_heads(self.v(x), 1, self.num_heads)
        zeros = torch.zeros_like(value)
        return zeros, zeros, value


@MODELS.register_module()
class ContentAttention(SoftmaxAttention):
    """Attention by content alone, `A = normalize(Phi_c)`: self-attention, in a block that has distances, too.

    Source: PerViT (Min et al., NeurIPS 2022), table 1, 'Phi_c' without 'Phi_p'. Biases, which `qkv_bias` adds, PerViT
    has none.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = False) -> None:
        super().__init__(embed_dims, num_heads, qkv_bias)

    def forward(self, x: Tensor, distance_embedding: nn.Module, distances: object = None) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); the distances are not used."""
        return super().forward(x)

    def attention_maps(
        self, x: Tensor, distance_embedding: nn.Module, queries: Tensor, distances: object = None
    ) -> AttentionMaps:
        return super().attention_maps(x, queries)


@MODELS.register_module()
class VectorDistance(nn.Module):
    """R as the distance between learned vectors of the places of query and key, channel by channel: `|e_k - e_q|`.

    Source: PerViT (Min et al., NeurIPS 2022), section 4.2 and table 5, 'Lrn'. The paper says no more of them. Chosen
    here: a vector for each place of the grid and of its margin of 2 tokens; small random values at the start, as of
    position embeddings; on other grids the vectors are resized (bicubic).

    Args:
        num_heads: Number of attention heads; R has 4 channels for each.
        grid: Token grid (height, width) of the pre-training.
    """

    def __init__(self, num_heads: int, grid: Grid = PRETRAIN_GRID) -> None:
        super().__init__()
        self.grid = tuple(grid)
        vectors = torch.empty(*_with_margin(self.grid), HIDDEN_RATIO * num_heads)
        self.vectors = nn.Parameter(trunc_normal_(vectors, std=0.02))

    def forward(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Vectors of keys, those of a grid and its margin, (channels, H + 4, W + 4), and of queries, without it."""
        vectors = full_precision(self.vectors)
        if tuple(grid) != self.grid:
            with without_autocast(vectors):
                vectors = resize_bicubic(vectors, _with_margin(grid))
        vectors = vectors.permute(2, 0, 1).contiguous()
        return vectors, vectors[:, KEY_MARGIN:-KEY_MARGIN, KEY_MARGIN:-KEY_MARGIN]


@MODELS.register_module()
class VariedPosition(nn.Module):
    """Phi_p of one or two layers, with or without the neighbourhood of each key, of any R.

    `sigmoid(IN(proj(R)))` or `sigmoid(IN(proj(ReLU(IN(proj(R))))))`. With a neighbourhood the projection is a 3 x 3
    convolution over the keys of a query (PerViT, eq. 7), without one a linear map, 1 x 1 (eq. 6).

    Source: PerViT (Min et al., NeurIPS 2022), table 5. With its defaults this is `PeripheralPosition`, which is
    faster. The norms, of which eq. 6 says nothing, stay in all rows: the initial values (eq. 9) are of the last one.

    Args:
        num_heads: Number of attention heads; the hidden layer has 4 channels for each.
        with_neighbours: 3 x 3 keys (the paper's script N), or the key alone.
        num_layers: 2 (the paper's ML), or 1.
    """

    def __init__(self, num_heads: int, with_neighbours: bool = True, num_layers: int = 2) -> None:
        super().__init__()
        channels = HIDDEN_RATIO * num_heads
        kernel_size = 3 if with_neighbours else 1
        widths = (channels,) * num_layers + (num_heads,)
        self.margin = num_layers * (kernel_size // 2)
        self.convs = nn.ModuleList(nn.Conv2d(*pair, kernel_size) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(width, width) for width in widths[1:])

    def hidden_plane(self, distances: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """R of all offsets, or the vectors of keys and queries, as they are."""
        return (distances,) if isinstance(distances, Tensor) else distances

    def forward(self, hidden: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """As `PeripheralPosition.forward`."""
        x = self._distances(hidden, rows, columns)
        with without_autocast(x):
            for index, (conv, norm) in enumerate(zip(self.convs, self.norms)):
                x = F.conv2d(x.relu() if index else x, *weight_and_bias(conv))
                # torch.group_norm, because F.group_norm raises an error for a single token.
                x = torch.group_norm(x, norm.num_groups, *weight_and_bias(norm), norm.eps)
        return F.logsigmoid(x).flatten(2).transpose(0, 1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: tuple[Tensor, ...]) -> Tensor:
        """As `PeripheralPosition.attend`."""
        grid = _grid_of(hidden)
        query, key, value = (tensor.transpose(1, 2).unflatten(1, grid) for tensor in (query, key, value))

        def bias_of_rows(rows: slice) -> Tensor:
            return without_maximum(self(hidden, rows, slice(0, grid[1])))

        output = attention_in_chunks(query, key, value, bias_of_rows, query.shape[-1] ** -0.5)
        return output.flatten(1, 2).transpose(1, 2)

    def _distances(self, hidden: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """R of the queries in a rectangle and of all keys with the margin: (queries, channels, H + 2 m, W + 2 m)."""
        inner = slice(KEY_MARGIN - self.margin, -(KEY_MARGIN - self.margin) or None)
        keys = hidden[0][:, inner, inner]
        if len(hidden) == 2:
            return (keys - hidden[1][:, rows, columns].flatten(1).T[:, :, None, None]).abs()
        height, width = _grid_of(hidden)
        rows, columns = range(height)[rows], range(width)[columns]
        windows = keys.unfold(1, height + 2 * self.margin, 1).unfold(2, width + 2 * self.margin, 1)
        # The window of a query in row i starts at row H - 1 - i: windows are in the reverse order of queries.
        windows = windows.flip(1, 2)[:, rows.start : rows.stop, columns.start : columns.stop]
        return windows.flatten(1, 2).transpose(0, 1)


def _grid_of(hidden: tuple[Tensor, ...]) -> Grid:
    """The grid that `VariedPosition.hidden_plane` is of."""
    if len(hidden) == 2:
        return tuple(hidden[1].shape[1:])
    return tuple((length + 1) // 2 - KEY_MARGIN for length in hidden[0].shape[1:])


def _with_margin(grid: Grid) -> Grid:
    return tuple(length + 2 * KEY_MARGIN for length in grid)
