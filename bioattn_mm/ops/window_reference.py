"""The sliding window in plain PyTorch: what every other backend is tested against.

Keys and values are read through one shifted view per window offset: (N, k * k, d) unfolded keys are never formed.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def sliding_window_qk_reference(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """`bioattn_mm.ops.sliding_window_qk` for checked arguments of one floating dtype."""
    window_size = round(bias.shape[-1] ** 0.5)
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = window_products(query.to(dtype), pad_window(key.to(dtype), window_size), window_size) + bias.to(dtype)
    outside = outside_image(*query.shape[1:3], window_size, query.device)
    return logits.masked_fill(outside, float('-inf')).to(query.dtype)


def sliding_window_av_reference(weights: Tensor, value: Tensor) -> Tensor:
    """`bioattn_mm.ops.sliding_window_av` for checked arguments of one floating dtype."""
    window_size = round(weights.shape[-1] ** 0.5)
    dtype = torch.promote_types(value.dtype, torch.float32)
    outside = outside_image(*value.shape[1:3], window_size, value.device)
    weights = weights.to(dtype).masked_fill(outside, 0)
    return window_sums(weights, pad_window(value.to(dtype), window_size), window_size).to(value.dtype)


def pad_window(tokens: Tensor, window_size: int) -> Tensor:
    """Zeros around (B, H, W, heads, d), as far as the windows leave the image."""
    margin = window_size // 2
    return F.pad(tokens, (0, 0, 0, 0, margin, margin, margin, margin))


def window_products(query: Tensor, padded_key: Tensor, window_size: int) -> Tensor:
    """Products of each query with the keys of its window: (B, H, W, heads, k * k)."""
    keys = _shifted_views(padded_key, window_size)
    return torch.stack([(query * key).sum(-1) for key in keys], dim=-1)


def window_sums(weights: Tensor, padded_value: Tensor, window_size: int) -> Tensor:
    """Sum of the values in each position's window under its weights: (B, H, W, heads, d)."""
    views = enumerate(_shifted_views(padded_value, window_size))
    return sum(weights[..., index, None] * value for index, value in views)


def outside_image(height: int, width: int, window_size: int, device: torch.device) -> Tensor:
    """Whether each window offset leaves the image: bool (H, W, 1, k * k)."""

    def outside_axis(length: int) -> Tensor:
        window = torch.arange(window_size, device=device) - window_size // 2
        position = torch.arange(length, device=device)[:, None] + window
        return (position < 0) | (position >= length)  # (length, k)

    rows, columns = outside_axis(height), outside_axis(width)
    return (rows[:, None, :, None] | columns[None, :, None, :]).flatten(2).unsqueeze(2)


def _shifted_views(padded: Tensor, window_size: int) -> Iterator[Tensor]:
    """What lies at each offset of the window, for all positions at once: k * k views, row-major."""
    rows, columns = (length - window_size + 1 for length in padded.shape[1:3])
    for dy in range(window_size):
        for dx in range(window_size):
            yield padded[:, dy : dy + rows, dx : dx + columns]
