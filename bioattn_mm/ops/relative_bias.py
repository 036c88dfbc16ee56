"""From the bias of each offset between two tokens of a grid to the bias of pairs of tokens."""

from torch import Tensor


def bias_of_pairs(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Turn the bias of all offsets into the bias of all pairs of tokens.

    Args:
        table: (..., 2 H - 1, 2 W - 1): bias of the offsets (query - key), from -(H - 1) and -(W - 1) upwards.
        grid: (height, width) in tokens.

    Returns:
        (..., H * W, H * W) with the axes (..., query, key).
    """
    return bias_of_rows(table, grid, slice(None))


def bias_of_rows(table: Tensor, grid: tuple[int, int], rows: slice) -> Tensor:
    """`bias_of_pairs` of the queries in some rows of the grid: (..., rows * W, H * W)."""
    # The part of the table that each query needs, a view (..., rows, W, H, W) with the keys in reversed order.
    windows = table.unfold(-2, grid[0], 1)[..., rows, :, :].unfold(-2, grid[1], 1)
    return windows.flip((-2, -1)).flatten(-2).flatten(-3, -2)


def bias_of_queries(table: Tensor, grid: tuple[int, int], queries: Tensor) -> Tensor:
    """`bias_of_pairs` of some queries, without computing the others.

    Args:
        table: (..., 2 H - 1, 2 W - 1).
        grid: (height, width) in tokens.
        queries: Indices of the queries in the row-major order of the grid, int64 (queries,).

    Returns:
        (..., queries, H * W).
    """
    windows = table.unfold(-2, grid[0], 1).unfold(-2, grid[1], 1)
    return windows[..., queries // grid[1], queries % grid[1], :, :].flip((-2, -1)).flatten(-2)
