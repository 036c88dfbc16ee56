"""The two attentions of TransNeXt: aggregated (stages 1-3) and length-scaled cosine attention (stage 4)."""

import math

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ..ops import aggregated_attention
from .arguments import channels_of_head, full_precision
from .log_cpb import LogCPB


def unit_vectors(x: Tensor) -> Tensor:
    """Divide the last axis by its l2 norm; zero stays zero, which takes float32: float16 has nothing below 6e-8.

    In untrained models the padding of a picture gives exact zeros, whose gradient is 1 / eps.
    """
    return F.normalize(full_precision(x), dim=-1, eps=1e-6).to(x.dtype)


class ScaledCosineQuery(nn.Module):
    """`(l2norm(q) + query_embedding) * softplus(temperature) * log(number of keys)` (TransNeXt, eq. 8 and 11).

    Args:
        num_heads: Attention heads.
        head_channels: Channels of a head.
    """

    def __init__(self, num_heads: int, head_channels: int) -> None:
        super().__init__()
        # softplus(temperature) starts at 1 / 0.24.
        self.temperature = nn.Parameter(torch.full((num_heads, 1), math.log(math.expm1(1 / 0.24))))
        self.query_embedding = nn.Parameter(trunc_normal_(torch.empty(num_heads, head_channels), std=0.02))

    def forward(self, unit_query: Tensor, log_length: Tensor | float) -> Tensor:
        """Scale l2-normalised queries.

        Args:
            unit_query: (..., heads, d).
            log_length: Natural logarithm of the number of keys of each query, broadcastable to `unit_query`.
        """
        return (unit_query + self.query_embedding) * (F.softplus(self.temperature) * log_length)


class AggregatedAttention(nn.Module):
    """Attention to a sliding window at full resolution and to a pooled grid of the whole image, under one softmax.

    Source: TransNeXt (Shi, CVPR 2024), eq. 10-14.

    Args:
        channels: Input and output channels.
        num_heads: Attention heads.
        position_bias: Bias between the tokens and the pooled tokens.
        sr_ratio: The pooled grid is the token grid divided by this, rounded down.
        pool_size: Fixed pooled grid (height, width) instead, whose cost is linear in the input size.
        window_size: Side of the window, odd.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        position_bias: LogCPB,
        sr_ratio: int,
        pool_size: tuple[int, int] | None = None,
        window_size: int = 3,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.pool_size = pool_size
        self.window_size = window_size
        head_channels = channels_of_head(channels, num_heads)
        self.q = nn.Linear(channels, channels)
        self.kv = nn.Linear(channels, 2 * channels)
        self.scale = ScaledCosineQuery(num_heads, head_channels)
        self.pool_proj = nn.Conv2d(channels, channels, 1)
        self.pool_norm = nn.LayerNorm(channels)
        self.window_bias = nn.Parameter(trunc_normal_(torch.empty(num_heads, window_size**2), std=0.0004))
        self.position_bias = position_bias
        self.learnable_tokens = nn.Parameter(
            trunc_normal_(torch.empty(num_heads, head_channels, window_size**2), std=0.02)
        )
        self.learnable_bias = nn.Parameter(torch.zeros(num_heads, window_size**2))
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        height, width = x.shape[1:3]
        pooled_grid = self.pooled_grid((height, width))

        unit_query = unit_vectors(self.q(x).unflatten(-1, (self.num_heads, -1)))
        log_length = self._log_number_of_keys(height, width, pooled_grid, x.device).to(unit_query.dtype)
        token_weights = torch.einsum('bhwnd,ndk->bhwnk', unit_query, self.learnable_tokens) + self.learnable_bias
        key, value = self._key_value(x)

        pooled = F.gelu(self.pool_proj(x.permute(0, 3, 1, 2)))
        pooled = F.adaptive_avg_pool2d(pooled, pooled_grid).permute(0, 2, 3, 1)
        pooled_key, pooled_value = self._key_value(self.pool_norm(pooled))
        pooled_bias, pooled_bias_rows = self.position_bias((height, width), pooled_grid)

        output = aggregated_attention(
            self.scale(unit_query, log_length),
            key,
            value,
            pooled_key,
            pooled_value,
            self.window_bias,
            pooled_bias.to(x.dtype),
            pooled_bias_rows,
            token_weights,
        )
        return self.proj(output.flatten(-2))

    def pooled_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Pooled grid (height, width) of a token grid (height, width)."""
        return self.pool_size or (grid[0] // self.sr_ratio, grid[1] // self.sr_ratio)

    def _key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """l2-normalised keys, and values, of window or pooled tokens: (B, H, W, heads, d) each."""
        key, value = self.kv(x).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return unit_vectors(key), value

    def _log_number_of_keys(
        self, height: int, width: int, pooled_grid: tuple[int, int], device: torch.device
    ) -> Tensor:
        """Logarithm of N_ij, the window's tokens inside the image plus the pooled tokens: (H, W, 1, 1)."""

        def inside_axis(length: int) -> Tensor:
            position = torch.arange(length, device=device)
            margin = self.window_size // 2
            return (position + margin).clamp(max=length - 1) - (position - margin).clamp(min=0) + 1

        number = torch.outer(inside_axis(height), inside_axis(width)) + pooled_grid[0] * pooled_grid[1]
        return number.log()[:, :, None, None]


class LengthScaledAttention(nn.Module):
    """Multi-head cosine attention with query embedding, length scaling and log-CPB (TransNeXt, eq. 8-9).

    Args:
        channels: Input and output channels.
        num_heads: Attention heads.
        position_bias: Bias between the tokens.
    """

    def __init__(self, channels: int, num_heads: int, position_bias: LogCPB) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.scale = ScaledCosineQuery(num_heads, channels_of_head(channels, num_heads))
        self.position_bias = position_bias
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        grid = tuple(x.shape[1:3])
        query, key, value = self.qkv(x).flatten(1, 2).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        query = self.scale(unit_vectors(query), math.log(grid[0] * grid[1]))
        query, key, value = (t.transpose(1, 2) for t in (query, unit_vectors(key), value))
        bias, rows = self.position_bias(grid, grid)
        bias = bias[:, rows].transpose(2, 3).flatten(3).flatten(1, 2)  # (heads, H * W, H * W)
        output = F.scaled_dot_product_attention(
            query, key.to(query.dtype), value.to(query.dtype), attn_mask=bias.to(query.dtype), scale=1.0
        )
        return self.proj(output.transpose(1, 2).flatten(2).unflatten(1, grid))
