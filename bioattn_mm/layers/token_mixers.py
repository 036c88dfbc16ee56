"""Parts of aggregated attention as attention layers of their own, for the ablations of TransNeXt (tables 3 and 9)."""

import math

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ..ops import log_num_keys, sliding_window_av, sliding_window_qk, unit_vectors
from ..ops.arguments import autocast_dtype
from ..ops.chunked_attention import attention_in_chunks
from ..registry import MODELS
from .aggregated_attention import (
    DEFAULT_SCALE,
    AggregatedAttention,
    pool_tokens,
    pooled_grid_of,
    tokens_of_windows,
)
from .arguments import check_window, full_precision, head_dims_of
from .attention_maps import AttentionMap, AttentionMaps, Grid
from .building import build_layer, replace_by_zeros
from .layer_norm import LayerNorm
from .log_cpb import PositionBias, cell_centres
from .query_scaling import CosineQueryWithoutEmbedding


@MODELS.register_module()
class PixelFocusedAttention(AggregatedAttention):
    """Aggregated attention without learnable tokens and, by default, without query embedding.

    Source: TransNeXt (Shi, CVPR 2024), section 3.1 and table 3: the attention to a window and to pooled tokens under
    one softmax, before positional attention (the learnable tokens) and query embedding are added. With
    `scale=dict(type='ScaledCosineQuery')` it has the query embedding, and lacks only the tokens.

    Args:
        embed_dims: As in `AggregatedAttention`, as the other arguments are.
    """

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
        scale = scale or dict(type=CosineQueryWithoutEmbedding)
        super().__init__(embed_dims, num_heads, position_bias, sr_ratio, pool_size, window_size, scale)
        replace_by_zeros(self, 'learnable_tokens', 'learnable_bias')


@MODELS.register_module()
class PooledAttention(nn.Module):
    """Attention to the pooled grid alone: eq. 10-12 of TransNeXt without the window.

    Source: TransNeXt (Shi, CVPR 2024), table 9, pooled tokens only. What stays is chosen here: query embedding and
    length scaling with the number of pooled tokens, not the learnable tokens, which stand for tokens of the window.

    Args:
        embed_dims: As in `AggregatedAttention`, as the other arguments are.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        position_bias: PositionBias,
        sr_ratio: int,
        pool_size: Grid | None = None,
        scale: dict | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.pool_size = pool_size
        head_dims = head_dims_of(embed_dims, num_heads)
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.scale = build_layer(scale or DEFAULT_SCALE, num_heads=num_heads, head_dims=head_dims)
        self.pool_proj = nn.Conv2d(embed_dims, embed_dims, 1)
        self.pool_norm = LayerNorm(embed_dims)
        self.position_bias = position_bias
        self.proj = nn.Linear(embed_dims, embed_dims)

    def pooled_grid(self, grid: Grid) -> Grid:
        """As in `AggregatedAttention`."""
        return pooled_grid_of(grid, self.sr_ratio, self.pool_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        grid = tuple(x.shape[1:3])
        query, key, value = self._query_key_value(x)
        bias, bias_rows = self.position_bias(grid, self.pooled_grid(grid))

        def bias_of_rows(rows: slice) -> Tensor:
            pairs = bias[:, bias_rows[rows]]  # (heads, rows, Ph, W, Pw)
            return pairs.transpose(2, 3).flatten(3).flatten(1, 2)

        output = attention_in_chunks(query, key, value, bias_of_rows, scale=1.0)
        return self.proj(output.flatten(-2))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis: 'attention', to the pooled tokens.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).
        """
        grid = tuple(x.shape[1:3])
        pooled_grid = self.pooled_grid(grid)
        row, column = queries // grid[1], queries % grid[1]
        query, key, _ = self._query_key_value(x)
        bias, rows = self.position_bias(grid, pooled_grid)
        logits = torch.einsum('bqnd,brcnd->bnqrc', query[:, row, column], key) + bias[:, rows[row], column[:, None]]
        weights = logits.flatten(3).softmax(-1).unflatten(-1, pooled_grid)
        centres = (cell_centres(*lengths).to(x.device)[None] for lengths in zip(grid, pooled_grid))
        return dict(attention=AttentionMap(weights, *centres))

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, (B, H, W, heads, d), and keys and values of the pooled grid, (B, Ph, Pw, heads, d)."""
        pooled_grid = self.pooled_grid(tuple(x.shape[1:3]))
        x = x.to(autocast_dtype(x))
        query = self.q(x).unflatten(-1, (self.num_heads, -1))
        query = self.scale(query, math.log(pooled_grid[0] * pooled_grid[1]))
        pooled = pool_tokens(x, self.pool_proj, self.pool_norm, pooled_grid)
        key, value = self.kv(pooled).unflatten(-1, (2, self.num_heads, -1)).unbind(3)
        return query, self.scale.key(key).to(query.dtype), value.to(query.dtype)


@MODELS.register_module()
class SlidingWindowAttention(nn.Module):
    """Attention to the window alone: eq. 10-14 of TransNeXt without the pooled tokens.

    Source: TransNeXt (Shi, CVPR 2024), table 9, window only. What stays is chosen here: the learnable tokens, which
    stand for tokens of the window, and length scaling with the number of the window's tokens inside of the image.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        window_size: Side of the window in tokens, odd.
        scale: As in `AggregatedAttention`.
    """

    def __init__(self, embed_dims: int, num_heads: int, window_size: int = 3, scale: dict | None = None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window_size = check_window(window_size)
        head_dims = head_dims_of(embed_dims, num_heads)
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.scale = build_layer(scale or DEFAULT_SCALE, num_heads=num_heads, head_dims=head_dims)
        self.window_bias = nn.Parameter(trunc_normal_(torch.empty(num_heads, window_size**2), std=0.0004))
        self.learnable_tokens = nn.Parameter(
            trunc_normal_(torch.empty(num_heads, head_dims, window_size**2), std=0.02)
        )
        self.learnable_bias = nn.Parameter(torch.zeros(num_heads, window_size**2))
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        weights, token_weights, value = self._weights_and_value(x)
        output = sliding_window_av((weights + token_weights).to(value.dtype), value)
        return self.proj(output.flatten(-2))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis: 'window', which sum to 1, and 'learnable tokens', added to them.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).
        """
        row, column = queries // x.shape[2], queries % x.shape[2]
        rows, columns, inside = tokens_of_windows(row, column, tuple(x.shape[1:3]), self.window_size)
        window, tokens = (
            weights[:, row, column].transpose(1, 2).unflatten(-1, (self.window_size, self.window_size)) * inside
            for weights in self._weights_and_value(x)[:2]
        )
        return {
            'learnable tokens': AttentionMap(tokens, rows, columns),
            'window': AttentionMap(window, rows, columns),
        }

    def _weights_and_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of the window, those of the learnable tokens, both (B, H, W, heads, k * k), and values."""
        projected = self.q(x).unflatten(-1, (self.num_heads, -1))
        key, value = self.kv(x).unflatten(-1, (2, self.num_heads, -1)).unbind(3)
        log_length = log_num_keys(tuple(x.shape[1:3]), self.window_size, 0, self.window_bias.dtype, x.device)
        query = self.scale(projected, log_length).to(value.dtype)
        logits = sliding_window_qk(query, self.scale.key(key), self.window_bias.to(value.dtype))
        tokens = torch.einsum('bhwnd,ndk->bhwnk', unit_vectors(projected), self.learnable_tokens.to(value.dtype))
        return full_precision(logits).softmax(-1), tokens + self.learnable_bias, value
