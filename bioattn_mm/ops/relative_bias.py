"""From tables of biases to the bias of pairs of tokens."""

import torch
from torch import Tensor

from .portable import is_portable, is_symbol

ALL = slice(None)


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
    place = torch.arange(length, device=device)
    return place[:, None] - place + length - 1


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
    """(heads, R, C) to (heads, R, W, Pw) by the column of each pair of columns, int64 (W, Pw)."""
    return table.index_select(2, columns.flatten()).unflatten(2, columns.shape)


def bias_of_table(table: Tensor, rows: Tensor, weights: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The bias of pairs of columns, (heads, R, W, Pw), and which of its rows a pair of rows has, int64 (H, Ph).

    Sums of rows (see `rows_of_pairs`) become rows of their own.
    """
    if rows.shape[2] > 1:
        table = rows_of_pairs(table, rows, weights).flatten(1, 2)
        rows = torch.arange(table.shape[1], device=table.device).view(*rows.shape[:2], 1)
    return columns_of_pairs(table, columns), rows.squeeze(2)
