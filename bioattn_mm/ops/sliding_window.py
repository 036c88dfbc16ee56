"""Attention to a sliding window in two steps: logits of queries and keys, and weighted sums of values."""

from torch import Tensor

from .arguments import check_fits, check_offsets, check_tokens
from .backends import choose_backend
from .reference import sliding_window_av_reference, sliding_window_qk_reference
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
        return sliding_window_qk_reference(query, key, bias)
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
        return sliding_window_av_reference(weights, value)
    return differentiable('sliding_window_av', weights, value)
