"""The operators in plain PyTorch, for systems without the compiled ones, which are tested against these."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from .arguments import AggregatedAttentionInputs, autocast_dtype, without_autocast
from .chunked_attention import attention_in_chunks
from .chunks import chunk_numel
from .portable import is_exported, is_portable
from .portable_attention import portable_aggregated_attention
from .relative_bias import bias_of_pairs, bias_of_rows
from .windows import outside_of_windows, pad_for_windows, window_products, window_size_of, window_sums

# Without autograd, queries are processed in chunks of rows with at most this many attention weights on a CPU: memory
# stays bounded at any input size, and the weights stay in the last-level cache.
MAX_WEIGHTS_PER_CHUNK = 2**22


def with_dtypes_of_operators(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run a function of tensors in the dtypes of the compiled operators.

    Under autocast its arguments are cast. Float16 and bfloat16 are dtypes of storage, the arithmetic is float32.
    """

    @wraps(reference)
    def run(*tensors: Tensor) -> Tensor:
        dtype = autocast_dtype(tensors[0])
        compute_dtype = torch.promote_types(dtype, torch.float32)
        rounded = [tensor.to(autocast_dtype(tensor)) for tensor in tensors]
        with without_autocast(tensors[0]):
            return reference(*(t.to(compute_dtype) if t.is_floating_point() else t for t in rounded)).to(dtype)

    return run


@with_dtypes_of_operators
def sliding_window_qk_reference(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """`bioattn_mm.ops.sliding_window_qk` of checked arguments."""
    window_size = window_size_of(bias.shape[-1])
    logits = window_products(query, pad_for_windows(key, window_size), window_size) + bias
    return logits.masked_fill(outside_of_windows(query, window_size), float('-inf'))


@with_dtypes_of_operators
def sliding_window_av_reference(weights: Tensor, value: Tensor) -> Tensor:
    """`bioattn_mm.ops.sliding_window_av` of checked arguments."""
    window_size = window_size_of(weights.shape[-1])
    weights = weights.masked_fill(outside_of_windows(value, window_size), 0)
    return window_sums(weights, pad_for_windows(value, window_size), window_size)


@with_dtypes_of_operators
def aggregated_attention_reference(*tensors: Tensor) -> Tensor:
    """`bioattn_mm.ops.aggregated_attention` of checked arguments: the tensors of `AggregatedAttentionInputs`."""
    inputs = AggregatedAttentionInputs(*tensors)
    if is_portable():
        return portable_aggregated_attention(inputs)
    window_size = window_size_of(inputs.window_bias.shape[-1])
    outside = outside_of_windows(inputs.query, window_size)
    inputs = inputs._replace(
        key=pad_for_windows(inputs.key, window_size), value=pad_for_windows(inputs.value, window_size)
    )
    if is_exported():
        return _attend(inputs, outside, window_size)

    batch, height, width, heads, _ = inputs.query.shape
    rows_per_chunk = max(1, height)
    if not torch.is_grad_enabled():
        weights_per_chunk = chunk_numel(inputs.query.device, MAX_WEIGHTS_PER_CHUNK)
        weights_per_row = batch * width * heads * (window_size**2 + inputs.pooled_key.shape[1:3].numel())
        rows_per_chunk = min(rows_per_chunk, max(1, weights_per_chunk // max(1, weights_per_row)))
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


def relative_bias_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> Tensor:
    """`bioattn_mm.ops.relative_bias_attention` of checked arguments."""
    grid = tuple(query.shape[1:3])

    def bias_of_queries(rows: slice) -> Tensor:
        return bias_of_pairs(bias, grid) if rows == slice(None) else bias_of_rows(bias, grid, rows)

    return attention_in_chunks(query, key, value, bias_of_queries, scale)


def _attend(inputs: AggregatedAttentionInputs, outside: Tensor, window_size: int) -> Tensor:
    """Aggregated attention of some rows of queries, with padded keys and values."""
    batch, rows, width, heads, channels = inputs.query.shape
    window_logits = window_products(inputs.query, inputs.key, window_size) + inputs.window_bias
    window_logits = window_logits.masked_fill(outside, float('-inf')).permute(0, 3, 1, 2, 4).flatten(2, 3)

    pooled_key = inputs.pooled_key.flatten(1, 2).permute(0, 2, 3, 1)  # (B, heads, d, P)
    pooled_value = inputs.pooled_value.flatten(1, 2).transpose(1, 2)  # (B, heads, P, d)
    pooled_logits = inputs.query.permute(0, 3, 1, 2, 4).reshape(batch, heads, rows * width, channels) @ pooled_key
    bias = inputs.pooled_bias.index_select(1, inputs.pooled_bias_rows.flatten())
    bias = bias.unflatten(1, inputs.pooled_bias_rows.shape).transpose(2, 3)  # (heads, rows, W, Ph, Pw)
    pooled_logits = (pooled_logits.view(batch, *bias.shape) + bias).flatten(4).flatten(2, 3)

    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights, pooled_weights = weights.split([window_size**2, pooled_key.shape[-1]], dim=-1)
    output = (pooled_weights @ pooled_value).unflatten(2, (rows, width)).permute(0, 2, 3, 1, 4)
    window_weights = window_weights.unflatten(2, (rows, width)).permute(0, 2, 3, 1, 4) + inputs.token_weights
    return output + window_sums(window_weights, inputs.value, window_size)
