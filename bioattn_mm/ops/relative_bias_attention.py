"""Attention between all tokens of a grid with a relative position bias: one value for each offset and head."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from .arguments import autocast_dtype, check_fits, check_shape, check_tokens
from .backends import choose_backend
from .reference import relative_bias_attention_reference
from .registration import differentiable


@functools.cache
def compiled_flex_attention() -> Callable[..., Tensor]:
    """Flex attention, which PyTorch compiles at its first call; `torch.compile` itself imports for seconds."""
    return torch.compile(flex_attention)


def relative_bias_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attend from every token of a grid to all of them, with a bias that depends on the offset between the two.

    For the query at row `i` and column `j` and the key at row `u` and column `v`::

        A = softmax over (u, v) of (scale * query[i, j] . key[u, v] + bias[:, i - u + H - 1, j - v + W - 1])
        output[i, j] = sum over (u, v) of A[u, v] value[u, v]

    On the CPU weights and biases exist for one block of queries and keys at a time, forward and backward: memory is
    linear in the number of tokens. Half-precision inputs are multiplied and summed in float32; on processors with
    instructions for bfloat16, the kernels of aggregated attention run, in which weights are rounded to it, too.

    Args:
        query: (B, H, W, heads, d), float16, bfloat16, float32 or float64. Under autocast query, key and value are
            cast to its dtype, as for a matrix product, except float64.
        key: (B, H, W, heads, d), in the dtype of `query`.
        value: (B, H, W, heads, d), in the dtype of `query`.
        bias: Bias of each offset (query - key), from -(H - 1) and -(W - 1) upwards, (heads, 2 H - 1, 2 W - 1):
            float64 if `query` is, else float32.
        scale: Factor of the products, d^-1/2 by default.
        backend: 'cpu' (fused, C++), 'flex' (PyTorch's flex attention, for GPUs, compiled at the first call; the
            weights are not stored there either) or 'reference' (scaled dot-product attention with the bias of all
            pairs; on the CPU for some rows of queries at a time). By default the environment variable
            BIOATTN_MM_BACKEND, or else 'cpu' on a CPU and 'reference' on a GPU.

    Returns:
        (B, H, W, heads, d) in the dtype of `query`, or of autocast.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    check_tokens('query', query)
    height, width, heads, channels = query.shape[1:]
    check_fits('key', key, tuple(query.shape), 'query', query)
    check_fits('value', value, tuple(query.shape), 'query', query)
    check_shape('bias', bias, (heads, 2 * height - 1, 2 * width - 1), 'query', query)
    full_precision = torch.promote_types(query.dtype, torch.float32)
    if bias.dtype != full_precision:
        raise ValueError(f'bias must be {full_precision} to fit query, got {bias.dtype}')
    scale = max(channels, 1) ** -0.5 if scale is None else scale
    query, key, value = (tensor.to(autocast_dtype(tensor)) for tensor in (query, key, value))
    if backend == 'flex':
        return _flex(query, key, value, bias, scale)
    if choose_backend(query.device, backend) == 'cpu':
        return differentiable('relative_bias_attention', query, key, value, bias, scale)[0]
    return relative_bias_attention_reference(query, key, value, bias, scale)


def offset_score_mod(bias: Tensor) -> Callable:
    """The bias of `relative_bias_attention` as a `score_mod` of flex attention, which adds it inside the kernel."""
    height, width = ((length + 1) // 2 for length in bias.shape[1:])

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = query // width - key // width + (height - 1)
        column = query % width - key % width + (width - 1)
        return score + bias[head, row, column]

    return add_bias


def _flex(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    query_heads, key, value = (tensor.flatten(1, 2).transpose(1, 2) for tensor in (query, key, value))
    output = compiled_flex_attention()(query_heads, key, value, score_mod=offset_score_mod(bias), scale=scale)
    return output.transpose(1, 2).reshape(query.shape)
