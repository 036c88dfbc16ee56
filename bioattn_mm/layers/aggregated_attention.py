"""The two attention layers of TransNeXt: aggregated (stages 1-3) and length-scaled cosine attention (stage 4).

Its variant A-A-A-A has aggregated attention in all stages.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ..ops import (
    AggregatedAttentionInputs,
    CosineAttentionInputs,
    cosine_attention,
    gelu_pool,
    gelu_pool_norm,
    has_gelu_pool_norm,
    relative_bias_attention,
    unit_vectors,
)
from ..ops.arguments import autocast_dtype
from ..ops.chunked_attention import attention_in_chunks
from ..ops.gelu_pool import average_pool
from ..ops.portable import is_portable, is_symbol
from ..ops.whole_layers import is_plain
from ..registry import MODELS
from .arguments import check_window, full_precision, head_dims_of
from .attention_maps import AttentionMap, AttentionMaps
from .building import build_layer, replace_by_zeros
from .fusing import product_and_bias, products, weights_and_biases
from .grid import Grid
from .half_precision import LayerNorm
from .log_cpb import LogCPB, PositionBias, cell_centres
from .size_cache import SizeCache


@MODELS.register_module()
class ScaledCosineQuery(nn.Module):
    """Length-scaled cosine similarity with query embedding: what the logits of query and key are, without their bias.

    The logit of a query with one of its N keys is the product of
    `(l2norm(query) + query_embedding) * softplus(temperature) * log(N)` and `l2norm(key)` (TransNeXt, eq. 10 and 12).

    Args:
        num_heads: Number of attention heads.
        head_dims: Width of a head.
    """

    def __init__(self, num_heads: int, head_dims: int) -> None:
        super().__init__()
        # The inverse of softplus: softplus(temperature) starts at 1 / 0.24.
        self.temperature = nn.Parameter(torch.full((num_heads, 1), math.log(math.expm1(1 / 0.24))))
        self.query_embedding = nn.Parameter(trunc_normal_(torch.empty(num_heads, head_dims), std=0.02))

    def forward(self, query: Tensor, log_length: Tensor | float, scale: Tensor | None = None) -> Tensor:
        """Normalise and scale queries.

        Args:
            query: (..., heads, d).
            log_length: Natural logarithm of the number of keys of each query, broadcastable to `query`.
            scale: `softplus(temperature)`, where it is known.

        Returns:
            The shape of `query`.
        """
        scale = F.softplus(self.temperature) if scale is None else scale
        return (unit_vectors(query) + self.query_embedding) * (scale * log_length)

    def key(self, key: Tensor) -> Tensor:
        """Normalise keys, (..., d)."""
        return unit_vectors(key)

    def attend(self, projections: dict[str, Tensor], scale: Tensor | None = None) -> Tensor:
        """Aggregated attention with this similarity.

        Args:
            projections: The arguments of `cosine_attention` but `scale` and `query_embedding`.
            scale: As in `forward`.

        Returns:
            (B, H, W, heads, d).
        """
        return cosine_attention(**projections, **self._scaling(scale))

    def logit_factors(self, projections: dict[str, Tensor]) -> AggregatedAttentionInputs:
        """Scaled queries, normalised keys and what else `aggregated_attention` takes; arguments as in `attend`."""
        return CosineAttentionInputs(**projections, **self._scaling()).normalised()

    def _scaling(self, scale: Tensor | None = None) -> dict[str, Tensor]:
        scale = F.softplus(full_precision(self.temperature)) if scale is None else scale
        return dict(scale=scale.flatten(), query_embedding=full_precision(self.query_embedding))


DEFAULT_SCALE = dict(type=ScaledCosineQuery)


@MODELS.register_module()
class AggregatedAttention(nn.Module):
    """Attention to a sliding window of tokens and to a pooled grid of the whole feature map, under one softmax.

    Source: TransNeXt (Shi, CVPR 2024), eq. 10-14.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        position_bias: Position bias between queries and pooled keys; if it has a method `of_window`, as
            `LogCPBOfBothPaths` has, that of the window, too.
        sr_ratio: Spatial reduction: the pooled grid is the token grid divided by it, rounded down, at least 1 x 1.
        pool_size: Fixed pooled grid (height, width) that takes the place of `sr_ratio`; the cost is then linear in
            the input size.
        window_size: Side of the window in tokens, odd.
        scale: Similarity of queries and keys; by default `ScaledCosineQuery`, else the settings of another one, with
            the same methods.
    """

    cast_at_once = ('q', 'kv', 'pool_proj', 'pool_norm', 'proj')
    default_scale = DEFAULT_SCALE
    # Parameters that an ablation is without.
    left_out: tuple[str, ...] = ()

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        position_bias: PositionBias,
        sr_ratio: int,
        pool_size: Grid | None = None,
        window_size: int = 3,
        scale: dict | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.pool_size = pool_size
        self.window_size = check_window(window_size)
        head_dims = head_dims_of(embed_dims, num_heads)
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.scale = build_layer(scale or self.default_scale, num_heads=num_heads, head_dims=head_dims)
        self.pool_proj = nn.Conv2d(embed_dims, embed_dims, 1)
        self.pool_norm = LayerNorm(embed_dims)
        self.window_bias = nn.Parameter(trunc_normal_(torch.empty(num_heads, window_size**2), std=0.0004))
        self.position_bias = position_bias
        if hasattr(position_bias, 'of_window') and 'window_bias' not in self.left_out:
            self.window_bias = None
        self.learnable_tokens = nn.Parameter(
            trunc_normal_(torch.empty(num_heads, head_dims, window_size**2), std=0.02)
        )
        self.learnable_bias = nn.Parameter(torch.zeros(num_heads, window_size**2))
        self.proj = nn.Linear(embed_dims, embed_dims)
        replace_by_zeros(self, *self.left_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.proj(self._attend(x))

    def without_last_bias(self, x: Tensor, *of_parameters: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same without the bias of its last layer, and that bias; it takes what `computed_together` gives."""
        return product_and_bias(self.proj, self._attend(x, *of_parameters))

    def _attend(self, x: Tensor, *of_parameters: Tensor) -> Tensor:
        table, scale = of_parameters[:1], of_parameters[1:]
        return self.scale.attend(self._projections(x, *table), *scale).flatten(-2)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).

        Returns:
            'window', with 0 for keys outside of the image, and 'pooled', which together sum to 1; and 'learnable
            tokens', which are added to those of the window.
        """
        grid = tuple(x.shape[1:3])
        inputs = self.scale.logit_factors(self._projections(x))
        row, column = queries // grid[1], queries % grid[1]
        rows, columns, inside = tokens_of_windows(row, column, grid, self.window_size)
        window = (self.window_size, self.window_size)

        query = inputs.query[:, row, column]
        key = inputs.key[:, rows.clamp(0, grid[0] - 1)[:, :, None], columns.clamp(0, grid[1] - 1)[:, None]]
        window_bias = inputs.window_bias.unflatten(-1, window)[:, None]
        window_logits = torch.einsum('bqnd,bqrcnd->bnqrc', query, key) + window_bias
        window_logits = window_logits.masked_fill(~inside, float('-inf')).flatten(3)
        pooled_bias = inputs.pooled_bias[:, inputs.pooled_bias_rows[row], column[:, None]]
        pooled_logits = (torch.einsum('bqnd,brcnd->bnqrc', query, inputs.pooled_key) + pooled_bias).flatten(3)
        weights = torch.cat((window_logits, pooled_logits), dim=-1).softmax(-1)
        window_weights, pooled_weights = weights.split([window_logits.shape[-1], pooled_logits.shape[-1]], dim=-1)

        pooled_grid = self.pooled_grid(grid)
        pooled_rows, pooled_columns = (
            cell_centres(length, pooled_length).to(x.device)[None] for length, pooled_length in zip(grid, pooled_grid)
        )
        token_weights = inputs.token_weights[:, row, column].transpose(1, 2) * inside.flatten(1)
        return {
            'window': AttentionMap(window_weights.unflatten(-1, window), rows, columns),
            'pooled': AttentionMap(pooled_weights.unflatten(-1, pooled_grid), pooled_rows, pooled_columns),
            'learnable tokens': AttentionMap(token_weights.unflatten(-1, window), rows, columns),
        }

    def foveal_map(self, x: Tensor, queries: Tensor) -> AttentionMap:
        """What some queries would attend to by content alone in the whole feature map, for analysis.

        TransNeXt, figure 7: a softmax over all tokens, none of them pooled, with the learned temperature and length
        scaling, and without query embedding and position bias. No output is made of these weights.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).
        """
        grid, tokens = tuple(x.shape[1:3]), x.flatten(1, 2)
        return AttentionMap.of_grid(self._content_weights(tokens[:, queries], tokens), grid)

    def peripheral_map(self, x: Tensor, queries: Tensor) -> AttentionMap:
        """What some queries would attend to by content alone among the pooled tokens, for analysis.

        TransNeXt, figure 7: as `foveal_map`, with the pooled tokens as keys.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).
        """
        grid = tuple(x.shape[1:3])
        pooled_grid = self.pooled_grid(grid)
        pooled = pool_tokens(x, self.pool_proj, self.pool_norm, pooled_grid)
        weights = self._content_weights(x.flatten(1, 2)[:, queries], pooled.flatten(1, 2))
        centres = (cell_centres(*lengths).to(x.device)[None] for lengths in zip(grid, pooled_grid))
        return AttentionMap(weights.unflatten(-1, pooled_grid), *centres)

    def _content_weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Softmax by content alone: tokens of queries and keys, (B, N, C), to (B, heads, queries, keys)."""
        query = self.q(queries).unflatten(-1, (self.num_heads, -1))
        key = self.scale.key(self.kv(keys).unflatten(-1, (2, self.num_heads, -1))[:, :, 0])
        log_length = math.log(keys.shape[1])
        # What a query of zeros gives is the part of the query embedding.
        query = self.scale(query, log_length) - self.scale(torch.zeros_like(query), log_length)
        return torch.einsum('bqnd,bknd->bnqk', query, key).softmax(-1)

    def _projections(self, x: Tensor, *table: Tensor) -> dict[str, Tensor]:
        """The arguments of the operator `cosine_attention` but those of the scale."""
        grid = tuple(x.shape[1:3])
        pooled_grid = self.pooled_grid(grid)
        x = x.to(autocast_dtype(x))  # once for all three projections
        pairs = weights_and_biases(x, self.q, self.kv, self.pool_proj)
        if pairs is None:
            query, key_value = self.q(x), self.kv(x)
            pooled = self.kv(pool_tokens(x, self.pool_proj, self.pool_norm, pooled_grid))
        else:
            query, key_value, pooled = self._project(x, pairs, pooled_grid)
        pooled_bias, pooled_bias_rows, pooled_bias_columns = self.position_bias.table(grid, pooled_grid, *table)
        return dict(
            query=query.unflatten(-1, (self.num_heads, -1)),
            key_value=key_value.unflatten(-1, (2, self.num_heads, -1)),
            pooled_key_value=pooled.unflatten(-1, (2, self.num_heads, -1)),
            window_bias=self.bias_of_window(),
            pooled_bias=pooled_bias,
            pooled_bias_rows=pooled_bias_rows,
            pooled_bias_columns=pooled_bias_columns,
            tokens=full_precision(self.learnable_tokens),
            token_bias=full_precision(self.learnable_bias),
        )

    def _project(self, x: Tensor, pairs: list[tuple[Tensor, Tensor]], pooled_grid: Grid) -> tuple[Tensor, ...]:
        """Queries, keys with values, and those of pooled tokens, by weights and biases in the dtype of `x`."""
        norm, (weight, bias) = self.pool_norm, pairs[2]
        if is_plain(norm, LayerNorm) and has_gelu_pool_norm(x, pooled_grid):
            query, key_value, to_pool, *weights = products(x, [*pairs[:2], (weight, None)])
            of_norm = (tensor.to(x.dtype) for tensor in (norm.weight, norm.bias))
            pooled = gelu_pool_norm(to_pool, bias, *of_norm, pooled_grid, norm.eps)
        else:
            query, key_value, to_pool, *weights = products(x, pairs)
            pooled = norm(gelu_pool(to_pool, pooled_grid))
        return query, key_value, F.linear(pooled, weights[1], pairs[1][1])

    def bias_of_window(self) -> Tensor:
        """Bias of the tokens of a window, (heads, k * k): learned here, unless the position bias has its own."""
        if self.window_bias is None:
            return self.position_bias.of_window(self.window_size)
        return full_precision(self.window_bias)

    def pooled_grid(self, grid: Grid) -> Grid:
        """Pooled grid (height, width) for a token grid (height, width)."""
        return pooled_grid_of(grid, self.sr_ratio, self.pool_size)


def pooled_grid_of(grid: Grid, sr_ratio: int, pool_size: Grid | None) -> Grid:
    """Pooled grid for a token grid: `pool_size`, or the token grid divided by `sr_ratio`, at least 1 x 1."""
    return pool_size or tuple(_pooled_length(length, sr_ratio) for length in grid)


def _pooled_length(length: int, sr_ratio: int) -> int:
    pooled = length // sr_ratio
    if isinstance(pooled, Tensor):  # traced
        return pooled.clamp(min=1)
    # An exported model takes no images of which nothing would be left.
    return pooled if is_symbol(length) else max(1, pooled)


def log_of_number(grid: Grid, like: Tensor) -> Tensor | float:
    """Natural logarithm of the number of tokens of a grid, a tensor like `like` where the size is a symbol."""
    return like.new_ones(grid).sum().log() if any(map(is_symbol, grid)) else math.log(grid[0] * grid[1])


def tokens_of_windows(row: Tensor, column: Tensor, grid: Grid, window_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where the windows of some queries are.

    Args:
        row: Rows of the queries, int64 (queries,).
        column: Their columns, int64 (queries,).
        grid: Height and width of the token grid.
        window_size: Side k of the window, odd.

    Returns:
        Rows and columns of the window's tokens, both int64 (queries, k), which may lie outside of the grid, and
        whether they lie in it, bool (queries, k, k).
    """
    reach = torch.arange(window_size, device=row.device) - window_size // 2
    rows, columns = row[:, None] + reach, column[:, None] + reach
    inside = ((rows >= 0) & (rows < grid[0]))[:, :, None] & ((columns >= 0) & (columns < grid[1]))[:, None]
    return rows, columns, inside


def pool_tokens(x: Tensor, proj: nn.Conv2d, norm: nn.LayerNorm, grid: Grid) -> Tensor:
    """Project, activate, pool and normalise tokens (the pooled path of TransNeXt): (B, H, W, C) to (B, *grid, C)."""
    if is_portable() or not is_plain(proj, nn.Conv2d):
        x = F.gelu(proj(x.permute(0, 3, 1, 2)))
        return norm(average_pool(x, grid).permute(0, 2, 3, 1))
    # The 1 x 1 convolution runs as a linear layer, which takes tokens without a change of layout.
    return norm(gelu_pool(F.linear(x, proj.weight.flatten(1), proj.bias), grid))


@MODELS.register_module()
class LengthScaledAttention(nn.Module):
    """Multi-head cosine attention with query embedding, length scaling and log-CPB (TransNeXt, eq. 6 and 9).

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        position_bias: Position bias between queries and keys.
        scale: As in `AggregatedAttention`.
    """

    cast_at_once = ('qkv', 'proj')

    def __init__(
        self, embed_dims: int, num_heads: int, position_bias: PositionBias, scale: dict | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        head_dims = head_dims_of(embed_dims, num_heads)
        self.scale = build_layer(scale or DEFAULT_SCALE, num_heads=num_heads, head_dims=head_dims)
        self.position_bias = position_bias
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.proj(self._attend(x))

    def without_last_bias(self, x: Tensor, *of_parameters: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same without the bias of its last layer, and that bias; it takes what `computed_together` gives."""
        return product_and_bias(self.proj, self._attend(x, *of_parameters))

    def _attend(self, x: Tensor, *of_parameters: Tensor) -> Tensor:
        table, scale = of_parameters[:1], of_parameters[1:]
        grid = tuple(x.shape[1:3])
        query, key, value = self._query_key_value(x, *scale)
        bias = table[0] if table else self.position_bias.of_offsets(grid)
        if bias is None:
            output = attention_in_chunks(query, key, value, self.position_bias.resized_rows(grid), scale=1.0)
        else:
            output = relative_bias_attention(query, key, value, bias, scale=1.0)
        return output.flatten(-2)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention' of some queries (see `layers.attention_maps`)."""
        grid = tuple(x.shape[1:3])
        query, key = (tokens.flatten(1, 2).transpose(1, 2) for tokens in self._query_key_value(x)[:2])
        bias, rows = self.position_bias(grid, grid)
        bias = bias[:, rows[queries // grid[1]], (queries % grid[1])[:, None]]  # (heads, queries, H, W)
        logits = query[:, :, queries] @ key.transpose(-2, -1) + bias.flatten(2).to(query.dtype)
        return dict(attention=AttentionMap.of_grid(logits.softmax(-1), grid))

    def _query_key_value(self, x: Tensor, *scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, normalised keys, and values: (B, H, W, C) to three of (B, H, W, heads, d)."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        query = self.scale(query, log_of_number((x.shape[1], x.shape[2]), query), *scale)
        # Parameters made it float32, and autocast casts all three: once, and not there and back.
        query = query.to(autocast_dtype(query))
        return query, self.scale.key(key).to(query.dtype), value.to(query.dtype)


def computed_together(layers: Sequence[nn.Module], grid: Grid) -> list[tuple[Tensor, ...]]:
    """What attention layers compute of their parameters alone, in a few launches for all of them.

    Args:
        layers: Those of a stage.
        grid: Their token grid (height, width).

    Returns:
        For each layer the table of its position bias, and the scale of its heads; nothing where layers compute both
        by themselves: they are of other kinds or differ from each other, or keep the tables for the next image.
    """
    if len(layers) == 1 or not all(map(_is_plain, layers)):
        return [()] * len(layers)
    biases = [layer.position_bias for layer in layers]
    pooled_grids = [getattr(layer, 'pooled_grid', tuple)(grid) for layer in layers]
    weights = [(bias.pretrain_grid, bias.fc2.weight.shape) for bias in biases]
    if len(set(zip(map(type, layers), pooled_grids, weights))) > 1:
        return [()] * len(layers)
    stacks = [torch.stack(tensors) for tensors in zip(*(bias.layers() for bias in biases))]
    tables = biases[0].table_of(stacks, grid, pooled_grids[0])
    scales = F.softplus(torch.stack([layer.scale.temperature for layer in layers]))
    return list(zip(tables.unbind(), scales.unbind()))


def _is_plain(layer: nn.Module) -> bool:
    """Whether `computed_together` knows a layer's parts and computes them in its precision."""
    if type(layer) not in (AggregatedAttention, LengthScaledAttention) or type(layer.scale) is not ScaledCosineQuery:
        return False
    bias = layer.position_bias
    if type(bias) is not LogCPB or bias.bias_mode != 'extrapolate' or SizeCache.is_open(bias):
        return False
    return layer.scale.temperature.dtype == torch.float32
