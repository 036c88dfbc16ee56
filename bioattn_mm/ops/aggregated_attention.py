"""Aggregated attention: a sliding window and a pooled grid under one softmax, plus learnable tokens."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import autocast_dtype, check_fits, check_offsets, check_tokens, window_size_of, with_operator_dtypes
from .backends import choose_backend
from .chunked_attention import chunk_numel
from .portable import is_exported, is_portable
from .registration import differentiable, needs_backward
from .sliding_window import outside_of_windows, pad_for_windows, window_products, window_sums

# Without autograd, queries are processed in chunks of rows with at most this many attention weights on a CPU: memory
# stays bounded at any input size, and the weights stay in the last-level cache.
MAX_WEIGHTS_PER_CHUNK = 2**22


class AggregatedAttentionInputs(NamedTuple):
    """The tensors of `aggregated_attention`, which documents them, in the order of its arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    pooled_key: Tensor
    pooled_value: Tensor
    window_bias: Tensor
    pooled_bias: Tensor
    pooled_bias_rows: Tensor
    token_weights: Tensor


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
    inputs = query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights
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
        return _reference(*inputs)
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


@with_operator_dtypes
def _reference(*tensors: Tensor) -> Tensor:
    inputs = AggregatedAttentionInputs(*tensors)
    window_size = window_size_of(inputs.window_bias.shape[1])
    if is_portable():
        return _attend_portably(inputs, window_size)
    outside = outside_of_windows(inputs.query, window_size)
    key, value = (pad_for_windows(tensor, window_size) for tensor in (inputs.key, inputs.value))
    inputs = inputs._replace(key=key, value=value)
    if is_exported() or torch.is_grad_enabled():
        return _attend(inputs, outside, window_size)

    batch, height, width, heads, _ = inputs.query.shape
    weights_per_row = batch * width * heads * (window_size**2 + inputs.pooled_key.shape[1:3].numel())
    rows_per_chunk = max(1, chunk_numel(inputs.query.device, MAX_WEIGHTS_PER_CHUNK) // max(1, weights_per_row))
    output = []
    for top in range(0, max(1, height), rows_per_chunk):
        rows = slice(top, top + rows_per_chunk)
        rows_with_margin = slice(top, top + rows_per_chunk + window_size - 1)
        chunk = inputs._replace(
            query=inputs.query[:, rows],
            key=inputs.key[:, rows_with_margin],
            value=inputs.value[:, rows_with_margin],
            pooled_bias_rows=inputs.pooled_bias_rows[rows],
            token_weights=inputs.token_weights[:, rows],
        )
        output.append(_attend(chunk, outside[rows], window_size))
    return output[0] if len(output) == 1 else torch.cat(output, dim=1)


def _attend(inputs: AggregatedAttentionInputs, outside: Tensor, window_size: int) -> Tensor:
    """Aggregated attention of some rows of queries, with padded keys and values (TransNeXt, eq. 10 to 14)."""
    batch, rows, width, heads, channels = inputs.query.shape
    # TransNeXt, eq. 10, similarities to the window and to the pooled keys, each with its bias, eq. 11.
    window_logits = window_products(inputs.query, inputs.key, window_size) + inputs.window_bias
    window_logits = window_logits.masked_fill(outside, float('-inf')).permute(0, 3, 1, 2, 4).flatten(2, 3)

    pooled_key = inputs.pooled_key.flatten(1, 2).permute(0, 2, 3, 1)  # (B, heads, d, P)
    pooled_value = inputs.pooled_value.flatten(1, 2).transpose(1, 2)  # (B, heads, P, d)
    pooled_logits = inputs.query.permute(0, 3, 1, 2, 4).reshape(batch, heads, rows * width, channels) @ pooled_key
    bias = _pooled_bias(inputs)
    pooled_logits = (pooled_logits.view(batch, *bias.shape) + bias).flatten(4).flatten(2, 3)

    # TransNeXt, eq. 12 to 14: one softmax over both; its parts weight the values; learnable tokens add to the window.
    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights, pooled_weights = weights.split([window_size**2, pooled_key.shape[-1]], dim=-1)
    output = (pooled_weights @ pooled_value).unflatten(2, (rows, width)).permute(0, 2, 3, 1, 4)
    window_weights = window_weights.unflatten(2, (rows, width)).permute(0, 2, 3, 1, 4) + inputs.token_weights
    return output + window_sums(window_weights, inputs.value, window_size)


def _attend_portably(inputs: AggregatedAttentionInputs, window_size: int) -> Tensor:
    """Aggregated attention for other runtimes, at sizes that may be symbols, with few passes over the weights.

    Runtimes fuse no attention with two kinds of keys. One product gives the logits of both: those of the window stand
    beside the query, and an identity matrix beside the pooled keys passes them on. For the same reason the weights
    are not split afterwards: values of zero stand beside the pooled ones.
    """
    _, height, width, _, channels = inputs.query.shape
    offsets = window_size**2

    logits = window_products(inputs.query, pad_for_windows(inputs.key, window_size), window_size)
    query = torch.cat([logits, inputs.query], dim=-1).permute(0, 3, 1, 2, 4).flatten(2, 3)  # (B, heads, N, k * k + d)
    pooled_key = inputs.pooled_key.flatten(1, 2).permute(0, 2, 3, 1)  # (B, heads, d, P)
    identity = torch.eye(offsets, dtype=query.dtype, device=query.device)
    key = F.pad(pooled_key, (offsets, 0, offsets, 0)) + F.pad(identity, (0, pooled_key.shape[3], 0, channels))
    pooled_value = F.pad(inputs.pooled_value.flatten(1, 2).transpose(1, 2), (0, 0, offsets, 0))

    # The bias of the window's keys has -inf outside of the image. Where the size is fixed it is a constant.
    outside = outside_of_windows(inputs.query, window_size).squeeze(2)
    window = inputs.window_bias[:, None, None].masked_fill(outside, float('-inf')).flatten(1, 2)
    bias = torch.cat([window, _pooled_bias(inputs).flatten(3).flatten(1, 2)], dim=-1)
    weights = (query @ key + bias).softmax(dim=-1)
    output = (weights @ pooled_value).unflatten(2, (height, width)).permute(0, 2, 3, 1, 4)
    window_weights = weights[..., :offsets].unflatten(2, (height, width)).permute(0, 2, 3, 1, 4)
    values = pad_for_windows(inputs.value, window_size)
    return output + window_sums(window_weights + inputs.token_weights, values, window_size)


def _pooled_bias(inputs: AggregatedAttentionInputs) -> Tensor:
    """(heads, H, W, Ph, Pw)."""
    bias = inputs.pooled_bias.index_select(1, inputs.pooled_bias_rows.flatten())
    return bias.unflatten(1, inputs.pooled_bias_rows.shape).transpose(2, 3)
