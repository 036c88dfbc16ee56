"""Other attention layers than TransNeXt's own: those of its tables 2 and 6, and parts of its attention."""

import torch
from timm.layers import trunc_normal_
from timm.models import pvt_v2
from torch import Tensor, nn

from ..ops import AggregatedAttentionInputs, log_num_keys, sliding_window_av, sliding_window_qk, unit_vectors
from ..ops.arguments import autocast_dtype
from ..ops.chunked_attention import attention_in_chunks
from ..registry import MODELS
from .aggregated_attention import (
    DEFAULT_SCALE,
    AggregatedAttention,
    log_of_number,
    pool_tokens,
    pooled_grid_of,
    tokens_of_windows,
)
from .arguments import check_window, full_precision, head_dims_of
from .attention_maps import AttentionMap, AttentionMaps
from .building import build_layer
from .grid import Grid
from .log_cpb import PositionBias, cell_centres
from .query_scaling import CosineQueryWithoutEmbedding


@MODELS.register_module()
class PixelFocusedAttention(AggregatedAttention):
    """Aggregated attention without learnable tokens and, by default, without query embedding.

    Source: TransNeXt (Shi, CVPR 2024), table 2, step 6: the attention to a window and to pooled tokens under one
    softmax, before positional attention (the learnable tokens, step 7) and query embedding (step 8) are added. With
    `scale=dict(type='ScaledCosineQuery')` it has the query embedding, and lacks only the tokens.

    The arguments are those of `AggregatedAttention`.
    """

    default_scale = dict(type=CosineQueryWithoutEmbedding)
    left_out = ('learnable_tokens', 'learnable_bias')


@MODELS.register_module()
class DynamicBiasAttention(AggregatedAttention):
    """Aggregated attention whose learnable tokens are the position bias of the window, inside of the softmax.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 3: `Q T` takes the place of the learned bias of the window, which
    is left out, and so is the bias of the tokens, which would be the same. That nothing is added to the weights after
    the softmax then is chosen here: there is one set of tokens.

    The arguments are those of `AggregatedAttention`.
    """

    left_out = ('window_bias', 'learnable_bias')

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        weights, inputs = self._weights(x)
        window, pooled = weights.split([self.window_size**2, weights.shape[-1] - self.window_size**2], dim=-1)
        output = sliding_window_av(window, inputs.value)
        output = output + torch.einsum('bhwnp,bpnd->bhwnd', pooled, inputs.pooled_value.flatten(1, 2))
        return self.proj(output.flatten(-2))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """As in `AggregatedAttention`, without learnable tokens, which are a part of the logits."""
        grid = tuple(x.shape[1:3])
        row, column = queries // grid[1], queries % grid[1]
        rows, columns, _ = tokens_of_windows(row, column, grid, self.window_size)
        weights = self._weights(x)[0][:, row, column].transpose(1, 2)
        window, pooled = weights.split([self.window_size**2, weights.shape[-1] - self.window_size**2], dim=-1)
        pooled_grid = self.pooled_grid(grid)
        centres = (cell_centres(*lengths).to(x.device)[None] for lengths in zip(grid, pooled_grid))
        return dict(
            window=AttentionMap(window.unflatten(-1, (self.window_size, self.window_size)), rows, columns),
            pooled=AttentionMap(pooled.unflatten(-1, pooled_grid), *centres),
        )

    def _weights(self, x: Tensor) -> tuple[Tensor, AggregatedAttentionInputs]:
        """Weights of all queries, (B, H, W, heads, k * k + Ph * Pw), and what they are made of."""
        inputs = self.scale.logit_factors(self._projections(x))
        window = sliding_window_qk(inputs.query, inputs.key, inputs.window_bias.to(inputs.query.dtype))
        pooled = torch.einsum('bhwnd,bpnd->bhwnp', inputs.query, inputs.pooled_key.flatten(1, 2))
        bias = inputs.pooled_bias[:, inputs.pooled_bias_rows]  # (heads, H, Ph, W, Pw)
        bias = bias.permute(1, 3, 0, 2, 4).flatten(3)
        logits = torch.cat((full_precision(window + inputs.token_weights), full_precision(pooled) + bias), dim=-1)
        return logits.softmax(-1).to(inputs.value.dtype), inputs


@MODELS.register_module()
class SpatialReductionAttention(pvt_v2.Attention):
    """Attention to tokens that a strided convolution makes fewer (SRA), timm's of PVTv2.

    Source: PVTv2 (Wang et al., 2022), which is steps 1 to 5 of TransNeXt's table 2 (Shi, CVPR 2024).

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        sr_ratio: Side and stride of the convolution, which there is above 1.
    """

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int) -> None:
        head_dims_of(embed_dims, num_heads)
        super().__init__(embed_dims, num_heads, sr_ratio)
        self.reduction = sr_ratio

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return super().forward(x.flatten(1, 2), list(x.shape[1:3])).view(x.shape)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention' of some queries to the tokens that are left (see `layers.attention_maps`)."""
        query = self.q(x.flatten(1, 2)[:, queries]).unflatten(-1, (self.num_heads, -1))
        reduced = x
        if self.sr is not None:
            reduced = self.norm(self.sr(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        key = self.kv(reduced).unflatten(-1, (2, self.num_heads, -1))[:, :, :, 0]
        logits = torch.einsum('bqnd,brcnd->bnqrc', query, key) * self.scale
        weights = logits.flatten(3).softmax(-1).view(logits.shape)
        places = (
            (torch.arange(length, device=x.device) + 0.5) * self.reduction - 0.5 for length in reduced.shape[1:3]
        )
        return dict(attention=AttentionMap(weights, *(place[None] for place in places)))


@MODELS.register_module()
class PooledAttention(nn.Module):
    """Attention to the pooled grid alone: TransNeXt's aggregated attention without the window.

    It is no row of the paper. What stays is chosen here: query embedding and length scaling with the number of pooled
    tokens, not the learnable tokens, which stand for tokens of the window.

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
        self.pool_norm = nn.LayerNorm(embed_dims)
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
        """The map 'attention' of some queries to the pooled tokens (see `layers.attention_maps`)."""
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
        query = self.scale(query, log_of_number(pooled_grid, query))
        pooled = pool_tokens(x, self.pool_proj, self.pool_norm, pooled_grid)
        key, value = self.kv(pooled).unflatten(-1, (2, self.num_heads, -1)).unbind(3)
        return query, self.scale.key(key).to(query.dtype), value.to(query.dtype)


@MODELS.register_module()
class SlidingWindowAttention(nn.Module):
    """Attention to the window alone: TransNeXt's aggregated attention without the pooled tokens.

    It is no row of the paper. What stays is chosen here: the learnable tokens, which stand for tokens of the window,
    and length scaling with the number of the window's tokens inside of the image.

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
        """The maps 'window', which sums to 1, and 'learnable tokens', added to it (see `layers.attention_maps`)."""
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
