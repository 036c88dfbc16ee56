"""Aggregated attention in plain PyTorch: what every other backend is tested against."""

import torch
from torch import Tensor

from .window_reference import outside_image, pad_window, window_products, window_sums

# Without autograd, queries are processed in groups of rows whose attention weights fit this many elements:
# memory stays bounded at any input size, and the weights stay in the last-level cache.
MAX_WEIGHTS_PER_CHUNK = 2**22


def aggregated_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    token_weights: Tensor,
) -> Tensor:
    """`bioattn_mm.ops.aggregated_attention` for checked arguments of one floating dtype."""
    window_size = round(window_bias.shape[-1] ** 0.5)
    margin = window_size // 2
    key, value = pad_window(key, window_size), pad_window(value, window_size)
    pooled_key = pooled_key.flatten(1, 2).permute(0, 2, 3, 1)  # (B, heads, d, P)
    pooled_value = pooled_value.flatten(1, 2).transpose(1, 2)  # (B, heads, P, d)

    batch, height, width, heads, _ = query.shape
    outside = outside_image(height, width, window_size, query.device)
    weights_per_row = batch * width * heads * (window_size**2 + pooled_key.shape[-1])
    rows_per_chunk = height
    if not torch.is_grad_enabled():
        rows_per_chunk = min(height, max(1, MAX_WEIGHTS_PER_CHUNK // max(1, weights_per_row)))
    output = [
        _attend_rows(
            query[:, top : top + rows_per_chunk],
            key[:, top : top + rows_per_chunk + 2 * margin],
            value[:, top : top + rows_per_chunk + 2 * margin],
            pooled_key,
            pooled_value,
            window_bias,
            pooled_bias,
            pooled_bias_rows[top : top + rows_per_chunk],
            token_weights[:, top : top + rows_per_chunk],
            outside[top : top + rows_per_chunk],
            window_size,
        )
        for top in range(0, height, rows_per_chunk)
    ]
    return output[0] if len(output) == 1 else torch.cat(output, dim=1)


def _attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    token_weights: Tensor,
    outside: Tensor,
    window_size: int,
) -> Tensor:
    """Aggregated attention of some rows of queries; `key` and `value` carry the margin of the window."""
    batch, rows, width, heads, channels = query.shape
    window_logits = window_products(query, key, window_size)
    window_logits = (window_logits + window_bias).masked_fill(outside, float('-inf'))

    pooled_logits = query.permute(0, 3, 1, 2, 4).reshape(batch, heads, rows * width, channels) @ pooled_key
    pooled_rows = pooled_bias_rows.shape[1]
    row_bias = pooled_bias.index_select(1, pooled_bias_rows.flatten())
    row_bias = row_bias.unflatten(1, (rows, pooled_rows)).transpose(2, 3)  # (heads, rows, W, Ph, Pw)
    pooled_logits = pooled_logits.view(batch, *row_bias.shape) + row_bias
    pooled_logits = pooled_logits.flatten(4).flatten(2, 3)

    window_logits = window_logits.permute(0, 3, 1, 2, 4).flatten(2, 3)
    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights, pooled_weights = weights.split([window_size**2, pooled_key.shape[-1]], dim=-1)

    output = (pooled_weights @ pooled_value).unflatten(2, (rows, width)).permute(0, 2, 3, 1, 4)
    window_weights = window_weights.unflatten(2, (rows, width)).permute(0, 2, 3, 1, 4) + token_weights
    return output + window_sums(window_weights, value, window_size)
