"""Aggregated attention: a sliding window and a pooled grid under one softmax, plus learnable tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor

# Without autograd, queries are processed in groups of rows whose attention weights fit this many elements:
# memory stays bounded at any input size, and the weights stay in the last-level cache.
MAX_WEIGHTS_PER_CHUNK = 2**22


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
) -> Tensor:
    """Attend from every position to its window and to a pooled grid of the whole image (TransNeXt, eq. 10-14).

    For the query at row `i` and column `j`, with `s` its scaled query::

        A_window = s . k_window + window_bias           (-inf where the window leaves the image)
        A_pool[u, v] = s . k_pool[u, v] + pooled_bias[:, pooled_bias_rows[i, u], j, v]
        A = softmax(concat(A_window, A_pool))
        output = (A_window' + token_weights) V_window + A_pool' V_pool      (' marks the two parts of A)

    Values outside the image count as zero. Half-precision inputs are multiplied and summed in float32.

    The pooled bias has one row of biases for each distinct vertical offset between a query row and a pooled row,
    not for each pair of them: between a grid of H rows and its average pooling there are about 2 H such offsets.
    A bias given for every pair, (heads, H, Ph, W, Pw), is passed as `flatten(1, 2)` with
    `torch.arange(H * Ph).view(H, Ph)` for its rows.

    Args:
        query: Scaled queries, (B, H, W, heads, d).
        key: Window keys, (B, H, W, heads, d).
        value: Window values, (B, H, W, heads, d).
        pooled_key: Keys of the pooled grid, (B, Ph, Pw, heads, d).
        pooled_value: Values of the pooled grid, (B, Ph, Pw, heads, d).
        window_bias: Learned bias of each window offset, (heads, k * k) with k odd; row-major from the top left.
        pooled_bias: Position bias of the pooled keys, (heads, R, W, Pw).
        pooled_bias_rows: Row of `pooled_bias` for each pair of query row and pooled row, int64 (H, Ph).
        token_weights: Added to the window weights after the softmax, (B, H, W, heads, k * k).

    Returns:
        (B, H, W, heads, d) in the dtype of `value`.
    """
    window_size = _check_arguments(
        query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights
    )
    output_dtype = value.dtype
    compute_dtype = torch.promote_types(output_dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, token_weights = (
            tensor.to(compute_dtype)
            for tensor in (query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, token_weights)
        )
        margin = window_size // 2
        key, value = (F.pad(t, (0, 0, 0, 0, margin, margin, margin, margin)) for t in (key, value))
        pooled_key = pooled_key.flatten(1, 2).permute(0, 2, 3, 1)  # (B, heads, d, P)
        pooled_value = pooled_value.flatten(1, 2).transpose(1, 2)  # (B, heads, P, d)

        batch, height, width, heads, _ = query.shape
        outside = _outside_image(height, width, window_size, query.device)
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
        output = output[0] if len(output) == 1 else torch.cat(output, dim=1)
        return output.to(output_dtype)


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
    windows = [
        (slice(None), slice(dy, dy + rows), slice(dx, dx + width))
        for dy in range(window_size)
        for dx in range(window_size)
    ]
    # One shifted view of the keys per window offset: the (N, k * k, d) unfolded keys are never formed.
    window_logits = torch.stack([(query * key[window]).sum(-1) for window in windows], dim=-1)
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
    for index, window in enumerate(windows):
        output = output + window_weights[..., index, None] * value[window]
    return output


def _outside_image(height: int, width: int, window_size: int, device: torch.device) -> Tensor:
    """Whether each window offset leaves the image: bool (H, W, 1, k * k)."""

    def outside_axis(length: int) -> Tensor:
        window = torch.arange(window_size, device=device) - window_size // 2
        position = torch.arange(length, device=device)[:, None] + window
        return (position < 0) | (position >= length)  # (length, k)

    rows, columns = outside_axis(height), outside_axis(width)
    return (rows[:, None, :, None] | columns[None, :, None, :]).flatten(2).unsqueeze(2)


def _check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    token_weights: Tensor,
) -> int:
    """Raise a `ValueError` that names the first argument that does not fit the others; return the window size."""
    if query.dim() != 5:
        raise ValueError(f'query must be (B, H, W, heads, d), got shape {tuple(query.shape)}')
    batch, height, width, heads, channels = query.shape
    window_size = round(window_bias.shape[-1] ** 0.5)
    if window_size % 2 == 0 or window_size**2 != window_bias.shape[-1]:
        raise ValueError(
            f'window_bias must be (heads, k * k) with k odd, got shape {tuple(window_bias.shape)}: '
            f'{window_bias.shape[-1]} is not the square of an odd number'
        )
    if pooled_key.dim() != 5:
        raise ValueError(f'pooled_key must be (B, Ph, Pw, heads, d), got shape {tuple(pooled_key.shape)}')
    pooled_height, pooled_width = pooled_key.shape[1:3]
    bias_rows = pooled_bias.shape[1] if pooled_bias.dim() == 4 else -1
    expected_shapes = dict(
        key=(key, (batch, height, width, heads, channels)),
        value=(value, (batch, height, width, heads, channels)),
        pooled_key=(pooled_key, (batch, pooled_height, pooled_width, heads, channels)),
        pooled_value=(pooled_value, (batch, pooled_height, pooled_width, heads, channels)),
        window_bias=(window_bias, (heads, window_size**2)),
        pooled_bias=(pooled_bias, (heads, bias_rows, width, pooled_width)),
        pooled_bias_rows=(pooled_bias_rows, (height, pooled_height)),
        token_weights=(token_weights, (batch, height, width, heads, window_size**2)),
    )
    for name, (tensor, shape) in expected_shapes.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f'{name} must have shape {shape} to fit query {tuple(query.shape)}, got {tuple(tensor.shape)}'
            )
        if tensor.device != query.device:
            raise ValueError(f'{name} is on {tensor.device}, but query is on {query.device}')
    return window_size
