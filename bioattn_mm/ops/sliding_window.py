"""Attention to a sliding window in two steps: logits of queries and keys, and weighted sums of values."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_fits, check_offsets, check_tokens, window_size_of, with_operator_dtypes
from .backends import choose_backend
from .registration import differentiable


def sliding_window_qk(query: Tensor, key: Tensor, bias: Tensor, backend: str | None = None) -> Tensor:
    """Logits between every token and the tokens of the window around it (TransNeXt, Shi, CVPR 2024, eq. 10-14):

        logits[i, j, (dy, dx)] = query[i, j] . key[i + dy, j + dx] + bias[(dy, dx)]

    and -inf where the window leaves the image. Products are summed in float32, for float64 inputs in float64.
    Autocast casts the inputs to its dtype.

    Args:
        query: (B, H, W, heads, d), float16, bfloat16, float32 or float64.
        key: (B, H, W, heads, d), in the dtype of `query`.
        bias: Bias of each window offset, (heads, k * k) with k odd; row-major from the top left.
        backend: 'cpu', 'cuda' (compiled) or 'reference' (PyTorch, any device); by default see `choose_backend`.

    Returns:
        (B, H, W, heads, k * k) in the dtype of `query`.
    """
    check_tokens('query', query)
    offsets = check_offsets('bias', bias, '(heads, k * k)')
    check_fits('query', query, None, key=(key, query.shape), bias=(bias, (query.shape[3], offsets)))
    if choose_backend(query.device, backend) == 'reference':
        return _qk_reference(query, key, bias)
    return differentiable('sliding_window_qk', query, key, bias)


def sliding_window_av(weights: Tensor, value: Tensor, backend: str | None = None) -> Tensor:
    """Weighted sum of the values in the window around every token (TransNeXt, Shi, CVPR 2024, eq. 10-14):

        output[i, j] = sum over (dy, dx) of weights[i, j, (dy, dx)] * value[i + dy, j + dx]

    Outside of the image nothing is added, whatever the weight, and the gradient of the weight is 0. Dtypes are
    handled as by `sliding_window_qk`.

    Args:
        weights: As `sliding_window_qk` returns logits, (B, H, W, heads, k * k).
        value: (B, H, W, heads, d), in the dtype of `weights`, as the result.
        backend: As for `sliding_window_qk`.
    """
    check_tokens('value', value)
    offsets = check_offsets('weights', weights, '(B, H, W, heads, k * k)')
    check_fits('value', value, None, weights=(weights, (*value.shape[:4], offsets)))
    if choose_backend(value.device, backend) == 'reference':
        return _av_reference(weights, value)
    return differentiable('sliding_window_av', weights, value)


@with_operator_dtypes
def _qk_reference(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    window_size = window_size_of(bias.shape[-1])
    logits = window_products(query, pad_for_windows(key, window_size), window_size) + bias
    return logits.masked_fill(outside_of_windows(query, window_size), float('-inf'))


@with_operator_dtypes
def _av_reference(weights: Tensor, value: Tensor) -> Tensor:
    window_size = window_size_of(weights.shape[-1])
    weights = weights.masked_fill(outside_of_windows(value, window_size), 0)
    return window_sums(weights, pad_for_windows(value, window_size), window_size)


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
