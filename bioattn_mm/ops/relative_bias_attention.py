"""Attention between all tokens of a grid with a relative position bias: one value for each offset and head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import autocast_dtype, check_fits, check_table, check_tokens
from .backends import choose_backend
from .chunked_attention import attention_in_chunks
from .constants import cached_constant
from .portable import is_portable, is_symbol
from .registration import differentiable

ALL = slice(None)


def relative_bias_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float | None = None,
    backend: str | None = None,
    pairs: Sequence[Tensor] | None = None,
) -> Tensor:
    """Attend from every token of a grid to all of them, with a bias that depends on the offset between the two.

    For the query at row `i` and column `j` and the key at row `u` and column `v`::

        A = softmax over (u, v) of (scale * query[i, j] . key[u, v] + bias[:, i - u + H - 1, j - v + W - 1])
        output[i, j] = sum over (u, v) of A[u, v] value[u, v]

    On the CPU weights exist for some neighbouring queries at a time. Products of half precision are summed in
    float32; processors with instructions for bfloat16 round weights to it.

    Args:
        query: (B, H, W, heads, d). Autocast casts query, key and value, as for a matrix product, except float64.
        key: (B, H, W, heads, d), in the dtype of `query`.
        value: (B, H, W, heads, d), in the dtype of `query`.
        bias: Bias of each offset, (heads, 2 H - 1, 2 W - 1): float64 if `query` is, else float32.
        scale: Factor of the products, d^-1/2 by default.
        pairs: Rows of `bias`, then any (heads, R, C), for each pair of query and key row, int64 (H, H, n), weights
            of rows that are summed, (H, H, n - 1), and the column for each pair of columns, int64 (W, W), as in
            `cosine_attention`; by default those of the offsets.
        backend: 'cpu' (fused) or 'reference' (for some rows of queries at a time); see `choose_backend`.

    Returns:
        (B, H, W, heads, d) in the dtype of `query`, or of autocast.
    """
    check_tokens('query', query)
    height, width, heads, channels = query.shape[1:]
    check_fits('query', query, None, key=(key, query.shape), value=(value, query.shape))
    if pairs is None:
        full = torch.promote_types(query.dtype, torch.float32)
        check_fits('query', query, full, bias=(bias, (heads, 2 * height - 1, 2 * width - 1)))
    else:
        check_table('bias', query, (height, width), bias, *pairs)
    scale = max(channels, 1) ** -0.5 if scale is None else scale
    if choose_backend(query.device, backend) == 'cpu':
        pairs = _pairs_of_offsets(height, width, bias.dtype, bias.device) if pairs is None else pairs
        return differentiable('relative_bias_attention', query, key, value, bias, *pairs, scale)[0]
    query, key, value = (tensor.to(autocast_dtype(tensor)) for tensor in (query, key, value))

    def bias_of_rows(rows: slice) -> Tensor:
        if pairs is None:
            return bias_of_pairs(bias, (height, width), rows)
        of_rows, weights, columns = pairs
        part = columns_of_pairs(rows_of_pairs(bias, of_rows[rows], weights[rows]), columns)
        return part.transpose(2, 3).flatten(3).flatten(1, 2)

    return attention_in_chunks(query, key, value, bias_of_rows, scale)


@cached_constant
def _pairs_of_offsets(height: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """`pairs` of a bias of all offsets."""
    rows, columns = (index_of_offsets(length, device) for length in (height, width))
    return rows[..., None], torch.empty(height, height, 0, dtype=dtype, device=device), columns


def bias_of_pairs(table: Tensor, grid: tuple[int, int], rows: slice = ALL) -> Tensor:
    """The bias of all pairs of tokens, (..., query, key), by that of their offsets; or of some rows of queries.

    `table` is (..., 2 H - 1, 2 W - 1), with the offsets (query - key) from -(H - 1) and -(W - 1) upwards.
    """
    if rows == ALL and (is_portable() or any(map(is_symbol, grid))):
        # ONNX has no strided views, and torch.compile none whose sizes are left open: one look-up for each axis.
        for axis, length in zip((-2, -1), grid):
            table = table.index_select(axis, index_of_offsets(length, table.device).flatten())
        table = table.unflatten(-1, (grid[1], grid[1])).unflatten(-3, (grid[0], grid[0]))
        return table.transpose(-3, -2).flatten(-2).flatten(-3, -2)
    # The part of the table that each query needs, a view (..., rows, W, H, W) with the keys in reversed order.
    windows = table.unfold(-2, grid[0], 1)[..., rows, :, :].unfold(-2, grid[1], 1)
    return windows.flip((-2, -1)).flatten(-2).flatten(-3, -2)


def index_of_offsets(length: int, device: torch.device) -> Tensor:
    """Index of the offset between each query and key of an axis, among all from -(length - 1) upwards: int64."""
    position = torch.arange(length, device=device)
    return position[:, None] - position + length - 1


def bias_of_queries(table: Tensor, grid: tuple[int, int], queries: Tensor) -> Tensor:
    """`bias_of_pairs` of some queries alone, by their row-major indices, int64 (queries,): (..., queries, H * W)."""
    windows = table.unfold(-2, grid[0], 1).unfold(-2, grid[1], 1)
    return windows[..., queries // grid[1], queries % grid[1], :, :].flip((-2, -1)).flatten(-2)


def rows_of_pairs(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Sums of rows of a table, (heads, R, ...), for each pair of a query row and a key row: (heads, H, Ph, ...).

    `rows` are the summands, int64 (H, Ph, n), `weights`, (H, Ph, n - 1), those of all but the last, whose weight is
    what is missing to 1.
    """
    parts = [table.index_select(1, part.flatten()).unflatten(1, part.shape) for part in rows.unbind(-1)]
    if len(parts) == 1:
        return parts[0]
    weights = [weight.view(*weight.shape, *[1] * (table.dim() - 2)) for weight in weights.to(table.dtype).unbind(-1)]
    return sum((part * weight for part, weight in zip(parts, weights)), parts[-1] * (1 - sum(weights)))


def columns_of_pairs(table: Tensor, columns: Tensor) -> Tensor:
    """(..., C) to (..., W, Pw) by the column of each pair of columns, int64 (W, Pw)."""
    return table.index_select(-1, columns.flatten()).unflatten(-1, columns.shape)


def bias_of_table(table: Tensor, rows: Tensor, weights: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The bias of pairs of columns, (heads, R, W, Pw), and which of its rows a pair of rows has, int64 (H, Ph).

    Sums of rows (see `rows_of_pairs`) become rows of their own.
    """
    if rows.shape[2] > 1:
        table = rows_of_pairs(table, rows, weights).flatten(1, 2)
        rows = torch.arange(table.shape[1], device=table.device).view(*rows.shape[:2], 1)
    return columns_of_pairs(table, columns), rows.squeeze(2)
