"""TransNeXt's two attention layers, and those of its ablations, in ONNX operators instead of the compiled ones."""

import torch
import torch.nn.functional as F
from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor, nn

from ..layers import AggregatedAttention, LengthScaledAttention, PooledAttention, SlidingWindowAttention
from ..ops import unit_vectors
from .adaptive_pooling import averaging_matrices
from .sizes import Grid, Length, at_least_one, from_sizes

AGGREGATED = 'bioattn_mm.layers.AggregatedAttention.forward'
LENGTH_SCALED = 'bioattn_mm.layers.LengthScaledAttention.forward'
POOLED = 'bioattn_mm.layers.PooledAttention.forward'
SLIDING_WINDOW = 'bioattn_mm.layers.SlidingWindowAttention.forward'


@FUNCTION_REWRITER.register_rewriter(AGGREGATED)
def aggregated_attention__forward(self: AggregatedAttention, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C); one Gather collects the tokens of all windows."""
    window_size, num_heads, channels = self.window_size, self.num_heads, self.proj.in_features
    with from_sizes(FUNCTION_REWRITER.get_context(AGGREGATED).cfg):
        batch, height, width = x.shape[:3]
        pooled_grid = self.pool_size or tuple(at_least_one(length // self.sr_ratio) for length in (height, width))
        index, inside = windows_of_grid(height, width, window_size)
        log_length = (inside.sum(-1) + pooled_grid[0] * pooled_grid[1]).log()
        outside = inside.log()  # 0 inside the image, -inf outside
        rows, columns = averaging_matrices((height, width), pooled_grid, x.dtype)

    query = self.q(x).reshape(batch, -1, num_heads, channels // num_heads)
    token_weights = unit_vectors(query).transpose(1, 2) @ self.learnable_tokens + self.learnable_bias[:, None]
    query = self.scale(query, log_length[:, None, None]).transpose(1, 2)
    key, value = split_heads(self.kv(x), 2, num_heads, batch)

    pooled_key, pooled_value = split_heads(self.kv(pooled_tokens(self, x, rows, columns)), 2, num_heads, batch)
    key, value = (windows(tokens, index, (height, width), window_size) for tokens in (self.scale.key(key), value))

    window_logits = (key @ query[..., None])[..., 0] + self.bias_of_window()[:, None] + outside
    bias = bias_of_pairs(*self.position_bias((height, width), pooled_grid), (height, width), pooled_grid)
    pooled_logits = query @ self.scale.key(pooled_key).transpose(-2, -1) + bias
    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights = weights[..., : window_size**2] + token_weights
    output = (window_weights[..., None, :] @ value)[..., 0, :]
    output = output + weights[..., window_size**2 :] @ pooled_value
    return self.proj(output.transpose(1, 2).reshape(batch, height, width, channels))


@FUNCTION_REWRITER.register_rewriter(LENGTH_SCALED)
def length_scaled_attention__forward(self: LengthScaledAttention, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C); the number of keys in the scale is read from the input."""
    with from_sizes(FUNCTION_REWRITER.get_context(LENGTH_SCALED).cfg):
        batch, height, width = x.shape[:3]
        log_length = torch.as_tensor(height * width, dtype=x.dtype).log()
    query, key, value = split_heads(self.qkv(x), 3, self.num_heads, batch)
    query = self.scale(query.transpose(1, 2), log_length).transpose(1, 2)
    grid = (height, width)
    bias = bias_of_pairs(*self.position_bias(grid, grid), grid, grid)
    output = F.scaled_dot_product_attention(query, self.scale.key(key), value, attn_mask=bias, scale=1.0)
    return self.proj(output.transpose(1, 2).reshape(batch, height, width, self.proj.in_features))


@FUNCTION_REWRITER.register_rewriter(POOLED)
def pooled_attention__forward(self: PooledAttention, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C)."""
    num_heads, channels = self.num_heads, self.proj.in_features
    with from_sizes(FUNCTION_REWRITER.get_context(POOLED).cfg):
        batch, height, width = x.shape[:3]
        pooled_grid = self.pool_size or tuple(at_least_one(length // self.sr_ratio) for length in (height, width))
        log_length = torch.as_tensor(pooled_grid[0] * pooled_grid[1], dtype=x.dtype).log()
        rows, columns = averaging_matrices((height, width), pooled_grid, x.dtype)
    query = self.q(x).reshape(batch, -1, num_heads, channels // num_heads)
    query = self.scale(query, log_length).transpose(1, 2)
    key, value = split_heads(self.kv(pooled_tokens(self, x, rows, columns)), 2, num_heads, batch)
    bias = bias_of_pairs(*self.position_bias((height, width), pooled_grid), (height, width), pooled_grid)
    output = F.scaled_dot_product_attention(query, self.scale.key(key), value, attn_mask=bias, scale=1.0)
    return self.proj(output.transpose(1, 2).reshape(batch, height, width, channels))


@FUNCTION_REWRITER.register_rewriter(SLIDING_WINDOW)
def sliding_window_attention__forward(self: SlidingWindowAttention, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C)."""
    num_heads, channels = self.num_heads, self.proj.in_features
    with from_sizes(FUNCTION_REWRITER.get_context(SLIDING_WINDOW).cfg):
        batch, height, width = x.shape[:3]
        index, inside = windows_of_grid(height, width, self.window_size)
        log_length = inside.sum(-1).log()
    query = self.q(x).reshape(batch, -1, num_heads, channels // num_heads)
    token_weights = unit_vectors(query).transpose(1, 2) @ self.learnable_tokens + self.learnable_bias[:, None]
    query = self.scale(query, log_length[:, None, None]).transpose(1, 2)
    key, value = split_heads(self.kv(x), 2, num_heads, batch)
    key, value = (
        windows(tokens, index, (height, width), self.window_size) for tokens in (self.scale.key(key), value)
    )
    logits = (key @ query[..., None])[..., 0] + self.window_bias[:, None] + inside.log()
    output = ((logits.softmax(dim=-1) + token_weights)[..., None, :] @ value)[..., 0, :]
    return self.proj(output.transpose(1, 2).reshape(batch, height, width, channels))


def pooled_tokens(layer: nn.Module, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """What a layer pools of its tokens, (B, H, W, C) to (B, Ph * Pw, C), averaged by `averaging_matrices`."""
    pooled = rows @ F.gelu(layer.pool_proj(x.permute(0, 3, 1, 2))) @ columns.T
    return layer.pool_norm(pooled.reshape(x.shape[0], int(x.shape[3]), -1).transpose(1, 2))


def windows(tokens: Tensor, index: Tensor, grid: Grid, window_size: int) -> Tensor:
    """The tokens of every window, zero outside the image: (B, heads, N, d) to (B, heads, N, k * k, d)."""
    batch, num_heads, _, head_dims = tokens.shape
    tokens = F.pad(tokens.reshape(batch, num_heads, *grid, head_dims), (0, 0, *[window_size // 2] * 4))
    tokens = tokens.reshape(batch, num_heads, -1, head_dims).index_select(2, index)
    return tokens.reshape(batch, num_heads, -1, window_size**2, head_dims)


def windows_of_grid(height: Length, width: Length, window_size: int) -> tuple[Tensor, Tensor]:
    """The tokens of every window.

    Returns:
        Their indices in the grid padded by half a window, int64 (N * k * k,), and a mask, 1 inside the grid and 0 in
        the padding, float32 (N, k * k).
    """
    rows, columns = (torch.arange(length)[:, None] + torch.arange(window_size) for length in (height, width))
    index = rows[:, None, :, None] * (width + window_size - 1) + columns[:, None]
    rows, columns = (
        ((position >= window_size // 2) & (position < length + window_size // 2)).float()
        for position, length in ((rows, height), (columns, width))
    )
    inside = rows[:, None, :, None] * columns[:, None]
    return index.reshape(-1), inside.reshape(-1, window_size**2)


def bias_of_pairs(bias: Tensor, rows: Tensor, grid: Grid, pooled_grid: Grid) -> Tensor:
    """Bias of every pair of tokens from what `LogCPB` returns: (heads, R, W, Pw) to (heads, H * W, Ph * Pw)."""
    heads = int(bias.shape[0])
    bias = bias.index_select(1, rows.reshape(-1)).reshape(heads, grid[0], pooled_grid[0], grid[1], pooled_grid[1])
    return bias.transpose(2, 3).reshape(heads, grid[0] * grid[1], -1)


def split_heads(x: Tensor, parts: int, num_heads: int, batch: Length) -> tuple[Tensor, ...]:
    """(B, ..., parts * C) to `parts` of (B, heads, N, d)."""
    head_dims = int(x.shape[-1]) // (parts * num_heads)
    return x.reshape(batch, -1, parts, num_heads, head_dims).permute(2, 0, 3, 1, 4).unbind()
