"""The operators in plain PyTorch, for systems without the compiled ones, which are tested against these."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import AggregatedAttentionInputs, autocast_dtype, window_size_of, without_autocast
from .chunked_attention import attention_in_chunks, chunk_numel
from .portable import is_exported, is_portable
from .relative_bias import bias_of_pairs, bias_of_rows, rows_of_pairs

# Without autograd, queries are processed in chunks of rows with at most this many attention weights on a CPU: memory
# stays bounded at any input size, and the weights stay in the last-level cache.
MAX_WEIGHTS_PER_CHUNK = 2**22


def with_dtypes_of_operators(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run a function of tensors as the compiled operators: autocast casts, and half precision computes in float32."""

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
        return _portable_aggregated_attention(inputs)
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
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, pairs: Sequence[Tensor] | None
) -> Tensor:
    """`bioattn_mm.ops.relative_bias_attention` of checked arguments."""
    grid = tuple(query.shape[1:3])

    def bias_of_queries(rows: slice) -> Tensor:
        if pairs is not None:
            of_rows, weights, columns = pairs
            part = rows_of_pairs(bias, of_rows[rows], weights[rows]).index_select(3, columns.flatten())
            return part.unflatten(3, columns.shape).transpose(2, 3).flatten(3).flatten(1, 2)
        return bias_of_pairs(bias, grid) if rows == slice(None) else bias_of_rows(bias, grid, rows)

    return attention_in_chunks(query, key, value, bias_of_queries, scale)


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


def _portable_aggregated_attention(inputs: AggregatedAttentionInputs) -> Tensor:
    """Aggregated attention for other runtimes, at sizes that may be symbols, with few passes over the weights.

    Runtimes fuse no attention with two kinds of keys. One product gives the logits of both: those of the window stand
    beside the query, and an identity matrix beside the pooled keys passes them on. For the same reason the weights
    are not split afterwards: values of zero stand beside the pooled ones.
    """
    batch, height, width, heads, channels = inputs.query.shape
    window_size = window_size_of(inputs.window_bias.shape[1])
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


def samples_of_level(value: Tensor, size: tuple[int, int], locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of the samples of one level, (B, Q, heads, d), for `bioattn_mm.ops.deformable_attention`.

    Args:
        value: (B, H * W, heads, d).
        size: Its height and width.
        locations: (B, Q, heads, points, 2).
        weights: (B, Q, heads, points).
    """
    maps = value.permute(0, 2, 3, 1).flatten(0, 1).unflatten(2, size)
    # grid_sample has the outer edges at -1 and 1.
    grid = (2 * locations - 1).transpose(1, 2).flatten(0, 1)
    samples = F.grid_sample(maps, grid, mode='bilinear', padding_mode='zeros', align_corners=False)
    weights = weights.transpose(1, 2).flatten(0, 1).unsqueeze(1)
    return (samples * weights).sum(-1).unflatten(0, (value.shape[0], value.shape[2])).permute(0, 3, 1, 2)
