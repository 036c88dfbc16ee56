"""The two attention layers of TransNeXt: aggregated (stages 1-3) and length-scaled cosine attention (stage 4)."""

import math

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ...errors import InputError
from ...ops import AggregatedAttentionInputs, cosine_attention, gelu_pool, relative_bias_attention, unit_vectors
from ...ops.arguments import autocast_dtype, full_precision
from ...ops.cosine_attention import normalised
from ...ops.gelu_pool import average_pool
from ...ops.portable import is_portable, is_symbol
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps
from ..common.building import build_layer, replace_by_zeros
from ..common.hooks import is_plain
from ..common.layout import Grid, head_dims_of
from .half_precision import LayerNorm
from .maps import MapsOfAggregation
from .position_bias import PositionBias, pooled_grid_of


@MODELS.register_module()
class ScaledCosineQuery(nn.Module):
    """Length-scaled cosine similarity with query embedding (TransNeXt, eq. 10 and 12).

    The logit of a query with one of its N keys, without bias, is the product of
    `(l2norm(query) + query_embedding) * softplus(temperature) * log(N)` and `l2norm(key)`.

    Args:
        num_heads: Number of attention heads.
        head_dims: Width of a head.
    """

    def __init__(self, num_heads: int, head_dims: int) -> None:
        super().__init__()
        # The inverse of softplus: softplus(temperature) starts at 1 / 0.24.
        self.temperature = nn.Parameter(torch.full((num_heads, 1), math.log(math.expm1(1 / 0.24))))
        self.query_embedding = nn.Parameter(trunc_normal_(torch.empty(num_heads, head_dims), std=0.02))

    def forward(self, query: Tensor, log_length: Tensor | float) -> Tensor:
        """Normalise and scale queries, (..., heads, d), by the logarithm of the number of keys of each."""
        return (unit_vectors(query) + self.query_embedding) * (F.softplus(self.temperature) * log_length)

    def attend(self, projections: dict[str, Tensor]) -> Tensor:
        """Aggregated attention, (B, H, W, heads, d); `projections` are the other arguments of `cosine_attention`."""
        return cosine_attention(**projections, **self._scaling())

    def logit_factors(self, projections: dict[str, Tensor]) -> AggregatedAttentionInputs:
        """What `aggregated_attention` takes, such as scaled queries and normalised keys; arguments as in `attend`."""
        return normalised(**projections, **self._scaling())

    def _scaling(self) -> dict[str, Tensor]:
        scale = F.softplus(full_precision(self.temperature))
        return dict(scale=scale.flatten(), query_embedding=full_precision(self.query_embedding))


@MODELS.register_module()
class AggregatedAttention(MapsOfAggregation, nn.Module):
    """Attention to a sliding window of tokens and to a pooled grid of the whole feature map, under one softmax.

    Source: TransNeXt (Shi, CVPR 2024). Eq. 10, the similarities, and the scale in eq. 12 are those of `scale`;
    eq. 11, the bias, is `window_bias` of the window and `position_bias` of the pooled keys; the softmax of eq. 12,
    eq. 13, eq. 14 and the release's bias of Q T are the operator's: see `_attend` in ops/aggregated_attention.py.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        position_bias: Position bias of the pooled keys; with a method `of_window`, that of the window, too.
        sr_ratio: The pooled grid is the token grid divided by it, rounded down, at least 1 x 1.
        pool_size: Fixed pooled grid (height, width) that takes the place of `sr_ratio`: linear cost.
        window_size: Side of the window in tokens, odd.
        scale: Settings of the similarity, `ScaledCosineQuery` by default.
    """

    default_scale = dict(type=ScaledCosineQuery)
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
        if window_size < 1 or window_size % 2 == 0:
            raise InputError(f'window_size must be odd and positive, got {window_size}')
        self.window_size = window_size
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
        return self.proj(self.scale.attend(self._projections(x)).flatten(-2))

    def _projections(self, x: Tensor) -> dict[str, Tensor]:
        """The arguments of the operator `cosine_attention` but those of the scale."""
        grid = tuple(x.shape[1:3])
        pooled_grid = self.pooled_grid(grid)
        x = x.to(autocast_dtype(x))  # once for all three projections
        pooled = self.pooled_tokens(x)
        bias, rows, weights, columns = self.position_bias.table(grid, pooled_grid)
        window_bias = self.window_bias
        if window_bias is None:
            window_bias = self.position_bias.of_window(self.window_size)
        return dict(
            query=self.q(x).unflatten(-1, (self.num_heads, -1)),
            key_value=self.kv(x).unflatten(-1, (2, self.num_heads, -1)),
            pooled_key_value=self.kv(pooled).unflatten(-1, (2, self.num_heads, -1)),
            window_bias=full_precision(window_bias),
            pooled_bias=bias,
            pooled_bias_rows=rows,
            pooled_bias_weights=weights,
            pooled_bias_columns=columns,
            tokens=full_precision(self.learnable_tokens),
            token_bias=full_precision(self.learnable_bias),
        )

    def pooled_tokens(self, x: Tensor) -> Tensor:
        """The pooled path: project, activate, pool and normalise tokens, (B, H, W, C) to (B, Ph, Pw, C)."""
        grid = self.pooled_grid(tuple(x.shape[1:3]))
        if is_portable() or not is_plain(self.pool_proj, nn.Conv2d):
            x = F.gelu(self.pool_proj(x.permute(0, 3, 1, 2)))
            return self.pool_norm(average_pool(x, grid).permute(0, 2, 3, 1))
        # The 1 x 1 convolution runs as a linear layer, which takes tokens without a change of layout.
        return self.pool_norm(gelu_pool(F.linear(x, self.pool_proj.weight.flatten(1), self.pool_proj.bias), grid))

    def pooled_grid(self, grid: Grid) -> Grid:
        """Pooled grid (height, width) for a token grid (height, width)."""
        return pooled_grid_of(grid, self.sr_ratio, self.pool_size)


@MODELS.register_module()
class LengthScaledAttention(nn.Module):
    """Multi-head cosine attention with query embedding, length scaling (TransNeXt, eq. 6, 9), the release's log-CPB.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        position_bias: Position bias between queries and keys.
        scale: As in `AggregatedAttention`.
    """

    def __init__(
        self, embed_dims: int, num_heads: int, position_bias: PositionBias, scale: dict | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        head_dims = head_dims_of(embed_dims, num_heads)
        self.scale = build_layer(scale or dict(type=ScaledCosineQuery), num_heads=num_heads, head_dims=head_dims)
        self.position_bias = position_bias
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.proj(self.attend(x))

    def attend(self, x: Tensor, *bias: Tensor) -> Tensor:
        """What the last layer projects, (B, H, W, C) to the same shape; `bias` is `position_bias.table`."""
        grid = tuple(x.shape[1:3])
        query, key, value = self._query_key_value(x)
        table, *pairs = bias or self.position_bias.table(grid)
        return relative_bias_attention(query, key, value, table, scale=1.0, pairs=pairs or None).flatten(-2)

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, normalised keys, and values: (B, H, W, C) to three of (B, H, W, heads, d)."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        height, width = x.shape[1:3]
        is_open = is_symbol(height) or is_symbol(width)
        log_length = query.new_ones(height, width).sum().log() if is_open else math.log(height * width)
        query = self.scale(query, log_length)
        # The parameters of `scale` made the query float32. Under autocast all three are cast here, once.
        query = query.to(autocast_dtype(query))
        return query, unit_vectors(key).to(query.dtype), value.to(query.dtype)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention' (see `common.attention_maps`)."""
        grid = tuple(x.shape[1:3])
        query, key = (tokens.flatten(1, 2).transpose(1, 2) for tokens in self._query_key_value(x)[:2])
        bias, rows = self.position_bias(grid, grid)
        bias = bias[:, rows[queries // grid[1]], (queries % grid[1])[:, None]]  # (heads, queries, H, W)
        logits = query[:, :, queries] @ key.transpose(-2, -1) + bias.flatten(2).to(query.dtype)
        return dict(attention=AttentionMap.of_grid(logits.softmax(-1), grid))
