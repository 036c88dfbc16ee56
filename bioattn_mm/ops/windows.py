"""Products and sums over sliding windows in plain PyTorch.

Keys and values of a window are read through one shifted view for each of its k * k offsets, without unfolding them.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def window_size_of(offsets: int) -> int:
    """Side k of a window of k * k offsets; traced lengths are tensors."""
    return round(int(offsets) ** 0.5)


def pad_for_windows(tokens: Tensor, window_size: int) -> Tensor:
    """Zeros around (B, H, W, heads, d), as far as windows reach beyond the image."""
    margin = window_size // 2
    return F.pad(tokens, (0, 0, 0, 0, margin, margin, margin, margin))


def window_products(query: Tensor, padded_key: Tensor, window_size: int) -> Tensor:
    """Dot products of each query with the keys of its window: (B, H, W, heads, k * k)."""
    return torch.stack([(query * key).sum(-1) for key in _shifted_views(padded_key, window_size)], dim=-1)


def window_sums(weights: Tensor, padded_value: Tensor, window_size: int) -> Tensor:
    """Weighted sum of the values in each token's window: (B, H, W, heads, d)."""
    views = enumerate(_shifted_views(padded_value, window_size))
    return sum(weights[..., index, None] * value for index, value in views)


def _shifted_views(padded: Tensor, window_size: int) -> Iterator[Tensor]:
    """For each offset of the window, row by row, the tokens at this offset from all tokens: (B, H, W, heads, d)."""
    rows, columns = (length - window_size + 1 for length in padded.shape[1:3])
    for dy in range(window_size):
        for dx in range(window_size):
            yield padded[:, dy : dy + rows, dx : dx + columns]


def outside_of_windows(tokens: Tensor, window_size: int) -> Tensor:
    """Where the windows of (B, H, W, heads, d) leave the image: bool (H, W, 1, k * k)."""

    def outside_axis(length: int) -> Tensor:
        window = torch.arange(window_size, device=tokens.device) - window_size // 2
        position = torch.arange(length, device=tokens.device)[:, None] + window
        return (position < 0) | (position >= length)  # (length, k)

    rows, columns = (outside_axis(length) for length in tokens.shape[1:3])
    return (rows[:, None, :, None] | columns[None, :, None, :]).flatten(2).unsqueeze(2)
