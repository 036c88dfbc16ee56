"""Aggregated attention: a sliding window and a pooled grid under one softmax, plus learnable tokens."""

import torch
from torch import Tensor

from .arguments import AggregatedAttentionInputs, autocast_dtype, check_fits, check_offsets, check_tokens
from .backends import choose_backend
from .reference import aggregated_attention_reference
from .registration import differentiable, needs_backward


def aggregated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    token_weights: Tensor,
    backend: str | None = None,
) -> Tensor:
    """Attend from every token to its window and to a pooled grid of the whole image (TransNeXt, eq. 10-14).

    For the query at row `i` and column `j`, with `s` its scaled query:

        A_window = s . k_window + window_bias           (-inf where the window leaves the image)
        A_pool[u, v] = s . k_pool[u, v] + pooled_bias[:, pooled_bias_rows[i, u], j, v]
        A = softmax(concat(A_window, A_pool))
        output = (A_window' + token_weights) V_window + A_pool' V_pool      (' marks the two parts of A)

    Values outside of the image count as zero. Floating-point arguments have one dtype; autocast casts them, except
    float64. Products of half precision are summed in float32; on CUDA the weights of the pooled keys are rounded.

    Args:
        query: Scaled queries, (B, H, W, heads, d).
        key: Window keys, (B, H, W, heads, d).
        value: Window values, (B, H, W, heads, d).
        pooled_key: Keys of the pooled grid, (B, Ph, Pw, heads, d).
        pooled_value: Values of the pooled grid, (B, Ph, Pw, heads, d).
        window_bias: Learned bias of each window offset, (heads, k * k) with k odd; row-major from the top left.
        pooled_bias: Position bias of the pooled keys, (heads, R, W, Pw), a row for each vertical offset.
        pooled_bias_rows: Row of `pooled_bias` for each pair of query row and pooled row, int64 (H, Ph), 0 to R - 1.
        token_weights: Added to the window weights after the softmax, (B, H, W, heads, k * k).
        backend: 'cpu', 'cuda' (d = 8, 16, ... 64, k <= 9, no float64) or 'reference'; see `choose_backend`.

    Returns:
        (B, H, W, heads, d) in the dtype of the arguments, or of autocast.
    """
    inputs = AggregatedAttentionInputs(
        query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights
    )
    check_tokens('query', query)
    batch, height, width, heads, channels = query.shape
    offsets = check_offsets('window_bias', window_bias, '(heads, k * k)')
    if pooled_key.dim() != 5:
        raise ValueError(f'pooled_key must be (B, Ph, Pw, heads, d), got shape {tuple(pooled_key.shape)}')
    pooled_height, pooled_width = pooled_key.shape[1:3]
    bias_rows = pooled_bias.shape[1] if pooled_bias.dim() == 4 else -1
    pooled = batch, pooled_height, pooled_width, heads, channels
    check_fits(
        'query',
        query,
        None,
        key=(key, query.shape),
        value=(value, query.shape),
        pooled_key=(pooled_key, pooled),
        pooled_value=(pooled_value, pooled),
        window_bias=(window_bias, (heads, offsets)),
        pooled_bias=(pooled_bias, (heads, bias_rows, width, pooled_width)),
        token_weights=(token_weights, (batch, height, width, heads, offsets)),
    )
    check_fits('query', query, torch.int64, pooled_bias_rows=(pooled_bias_rows, (height, pooled_height)))
    unsupported = why_not_on_cuda(query, autocast_dtype(query), window_bias.shape[1])
    if choose_backend(query.device, backend, unsupported) == 'reference':
        return aggregated_attention_reference(*inputs)
    return differentiable('aggregated_attention', *inputs, needs_backward(*inputs))[0]


def why_not_on_cuda(query: Tensor, dtype: torch.dtype, offsets: int) -> str | None:
    """Why the CUDA kernels do not take the arguments (csrc/cuda/aggregated_attention.cuh); None if they do."""
    if not query.is_cuda:
        return None
    channels = query.shape[-1]
    if dtype == torch.float64:
        return 'aggregated_attention on CUDA takes float32, float16 and bfloat16, got float64'
    if channels % 8 or not 0 < channels <= 64:
        return f'aggregated_attention on CUDA takes 8, 16, ... 64 channels a head, got {channels}'
    if offsets > 9 * 9:
        return f'aggregated_attention on CUDA takes windows of 1, 3, 5, 7 and 9, got {offsets} window offsets'
    return None
