"""Gaussian attention bias (GAB): a Gaussian of the offset between query and key, added to the attention logits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import InputError
from .arguments import full_precision


class GaussianBias(nn.Module):
    """Position bias of one attention layer, shared by its heads.

    Source: Gaussian attention bias (Kim et al., BMVC 2023), eq. 3: `A^2 exp(-(dx^2 + dy^2) / (2 sigma^2))` with the
    offsets dx and dy between query and key in tokens, and two learned scalars, A and sigma. The paper slices the
    bias of each query from a stored table of (2 H - 1) x (2 W - 1) offsets. Here the table is computed for each grid
    or window: the Gaussian is a function of dy times a function of dx, so 2 H + 2 W - 2 exponentials are enough.

    With A = 0 the bias is off and stays off: its gradient, 2 A times a Gaussian, is 0 as well.

    Args:
        sigma: Initial standard deviation, in tokens.
        amplitude: Initial value of A; the logit of a token's attention to itself is raised by A^2.

    Raises:
        InputError: sigma is not positive.
    """

    def __init__(self, sigma: float, amplitude: float = 1.0) -> None:
        super().__init__()
        if sigma <= 0:
            raise InputError(f'sigma must be positive, got {sigma}')
        self.amplitude = nn.Parameter(torch.tensor(float(amplitude)))
        self.sigma = nn.Parameter(torch.tensor(float(sigma)))

    def head_parameters(self) -> dict[str, list[float]]:
        """A (which enters the bias squared) and sigma in tokens; all heads share them."""
        return dict(gaussian_amplitude=[self.amplitude.item()], gaussian_sigma=[self.sigma.item()])

    def forward(self, grid: tuple[int, int]) -> Tensor:
        """Bias of all pairs of tokens of a grid (height, width): float32 or float64 (H * W, H * W)."""
        return bias_of_pairs(self.table(grid), grid)

    def table(self, grid: tuple[int, int]) -> Tensor:
        """Bias of all offsets on a grid (height, width): float32 or float64 (2 H - 1, 2 W - 1)."""
        rows, columns = self.factors(grid)
        return rows[:, None] * columns

    def factors(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The two one-dimensional Gaussians whose outer product is the table; the first one includes A^2.

        Returns:
            Float32 or float64: (2 H - 1,) for the vertical offsets -(H - 1) to H - 1, and (2 W - 1,) for the
            horizontal offsets -(W - 1) to W - 1.
        """
        amplitude, sigma = full_precision(self.amplitude), full_precision(self.sigma)

        def gaussian(length: int) -> Tensor:
            offset = torch.arange(1 - length, length, dtype=sigma.dtype, device=sigma.device)
            return torch.exp(-0.5 * (offset / sigma).square())

        return amplitude.square() * gaussian(grid[0]), gaussian(grid[1])

    def score_mod(self, grid: tuple[int, int], table: Tensor | None = None) -> Callable:
        """The bias as a `score_mod` of `torch.nn.attention.flex_attention`, which adds it inside the kernel.

        The kernel multiplies the two factors of each pair of tokens, so no tensor of all pairs is stored.

        Args:
            grid: (height, width) in tokens.
            table: A second bias to add, one value for each offset: (heads, 2 H - 1, 2 W - 1).
        """
        height, width = grid
        rows, columns = self.factors(grid)

        def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            row = query // width - key // width + (height - 1)
            column = query % width - key % width + (width - 1)
            score = score + rows[row] * columns[column]
            return score if table is None else score + table[head, row, column]

        return add_bias


def bias_of_pairs(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Turn the bias of all offsets into the bias of all pairs of tokens.

    Args:
        table: (..., 2 H - 1, 2 W - 1): bias of the offsets (query - key), from -(H - 1) and -(W - 1) upwards.
        grid: (height, width) in tokens.

    Returns:
        (..., H * W, H * W) with the axes (..., query, key).
    """
    return _windows(table, grid).flip((-2, -1)).flatten(-2).flatten(-3, -2)


def bias_of_queries(table: Tensor, grid: tuple[int, int], queries: Tensor) -> Tensor:
    """The rows of `bias_of_pairs` for some queries, without computing the others.

    Args:
        table: (..., 2 H - 1, 2 W - 1).
        grid: (height, width) in tokens.
        queries: Indices of the queries in the row-major order of the grid, int64 (queries,).

    Returns:
        (..., queries, H * W).
    """
    windows = _windows(table, grid)[..., queries // grid[1], queries % grid[1], :, :]
    return windows.flip((-2, -1)).flatten(-2)


def _windows(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """The part of the table that each query needs, a view (..., H, W, H, W) with the keys in reversed order."""
    return table.unfold(-2, grid[0], 1).unfold(-2, grid[1], 1)
