"""Attention to a sliding window in two steps: logits of queries and keys, and weighted sums of values.

Operators for users, ablations and benchmarks: TransNeXt runs the fused `aggregated_attention` instead.
"""

from torch import Tensor

from .arguments import check_fits, check_offsets, check_tokens
from .backends import choose_backend
from .reference import sliding_window_av_reference, sliding_window_qk_reference
from .registration import differentiable


def sliding_window_qk(
    query: Tensor, key: Tensor, bias: Tensor, window_size: int | None = None, backend: str | None = None
) -> Tensor:
    """Logits between every token and the tokens of the window around it (TransNeXt, Shi, CVPR 2024, eq. 10-14):

        logits[i, j, (dy, dx)] = query[i, j] . key[i + dy, j + dx] + bias[(dy, dx)]

    and -inf where the window leaves the image. Products are summed in float32, or in float64 for float64 inputs.
    Under autocast the inputs are cast to its dtype, as for a matrix product.

    Args:
        query: (B, H, W, heads, d), float16, bfloat16, float32 or float64.
        key: (B, H, W, heads, d), in the dtype of `query`.
        bias: Bias of each window offset, (heads, k * k) with k odd; row-major from the top left.
        window_size: k, if `bias` should be checked against it.
        backend: 'cpu', 'cuda' (compiled) or 'reference' (PyTorch, any device). By default the environment variable
            BIOATTN_MM_BACKEND, or else the fastest for the device.

    Returns:
        (B, H, W, heads, k * k) in the dtype of `query`.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    check_tokens('query', query)
    offsets = check_offsets('bias', bias, '(heads, k * k)')
    if window_size is not None and window_size != round(offsets**0.5):
        raise ValueError(f'bias has {offsets} offsets, expected window_size {round(offsets**0.5)}, got {window_size}')
    check_fits('key', key, tuple(query.shape), 'query', query)
    check_fits('bias', bias, (query.shape[3], offsets), 'query', query)
    if choose_backend(query.device, backend) == 'reference':
        return sliding_window_qk_reference(query, key, bias)
    return differentiable('sliding_window_qk', query, key, bias)


def sliding_window_av(weights: Tensor, value: Tensor, backend: str | None = None) -> Tensor:
    """Weighted sum of the values in the window around every token (TransNeXt, Shi, CVPR 2024, eq. 10-14):

        output[i, j] = sum over (dy, dx) of weights[i, j, (dy, dx)] * value[i + dy, j + dx]

    Outside of the image nothing is added, whatever the weight, and the gradient of the weight is 0. Products are
    summed in float32, or in float64 for float64 inputs. Under autocast the inputs are cast to its dtype, as for a
    matrix product.

    Args:
        weights: Weight of each window offset, (B, H, W, heads, k * k) with k odd; row-major from the top left.
        value: (B, H, W, heads, d), float16, bfloat16, float32 or float64; `weights` in the same dtype.
        backend: As for `sliding_window_qk`.

    Returns:
        (B, H, W, heads, d) in the dtype of `value`.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    check_tokens('value', value)
    offsets = check_offsets('weights', weights, '(B, H, W, heads, k * k)')
    check_fits('weights', weights, (*value.shape[:4], offsets), 'value', value)
    if choose_backend(value.device, backend) == 'reference':
        return sliding_window_av_reference(weights, value)
    return differentiable('sliding_window_av', weights, value)
