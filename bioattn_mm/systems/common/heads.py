"""Splitting tokens into attention heads, and merging the heads again."""

from torch import Size, Tensor


def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split a projection into queries, keys and values: (B, H, W, parts * C) to `parts` of (B, heads, H * W, d)."""
    channels = x.shape[-1] // (parts * num_heads)
    return x.reshape(x.shape[0], -1, parts, num_heads, channels).permute(2, 0, 3, 1, 4).unbind()


def merge_heads(x: Tensor, shape: Size) -> Tensor:
    """Concatenate the heads' outputs: (B, heads, H * W, d) to `shape`, (B, H, W, C)."""
    return x.transpose(1, 2).reshape(shape)
