"""Gaussian attention bias: a Gaussian of the offset between query and key, added to the attention logits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import InputError


class GaussianBias(nn.Module):
    """Bias of one attention layer, the same for all of its heads.

    Source: Gaussian attention bias (Kim et al., BMVC 2023), eq. 3: `A^2 exp(-(dx^2 + dy^2) / (2 sigma^2))` with the
    offsets dx and dy between query and key in tokens, and two learned scalars, A and sigma. The paper slices the
    bias of each query from a stored table of (2 H - 1) x (2 W - 1) offsets. Here it is computed for the grid at
    hand: the Gaussian is the product of a function of dy and a function of dx, so 2 H + 2 W - 2 exponentials are
    all there is to compute, for any grid or window.

    A = 0 switches the bias off, and its gradient, 2 A times a Gaussian, with it: training does not leave that value.

    Args:
        sigma: Initial value, in tokens.
        amplitude: Initial value of A. 1 raises the logit of a token to itself by 1.

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
        """The bias between all tokens of a grid (height, width): float32 or float64 (H * W, H * W)."""
        return bias_of_pairs(self.table(grid), grid)

    def table(self, grid: tuple[int, int]) -> Tensor:
        """The bias of each offset on a grid (height, width): float32 or float64 (2 H - 1, 2 W - 1)."""
        rows, columns = self.factors(grid)
        return rows[:, None] * columns

    def factors(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The two one-dimensional Gaussians whose outer product is the bias, the first one with A^2 in it.

        Returns:
            Float32 or float64, of the offsets -(H - 1) to H - 1, (2 H - 1,), and -(W - 1) to W - 1, (2 W - 1,).
        """
        dtype = torch.promote_types(self.sigma.dtype, torch.float32)
        amplitude, sigma = self.amplitude.to(dtype), self.sigma.to(dtype)

        def gaussian(length: int) -> Tensor:
            offset = torch.arange(1 - length, length, dtype=dtype, device=sigma.device)
            return torch.exp(-0.5 * (offset / sigma).square())

        return amplitude.square() * gaussian(grid[0]), gaussian(grid[1])

    def score_mod(self, grid: tuple[int, int], table: Tensor | None = None) -> Callable:
        """The bias as a `score_mod` of `torch.nn.attention.flex_attention`, which adds it inside the kernel.

        Nothing of the size of all pairs of tokens is stored: the kernel looks up the two factors of each pair.

        Args:
            grid: (height, width) in tokens.
            table: Another bias of the offsets that is added, too: (heads, 2 H - 1, 2 W - 1).
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
    """Spread a bias of offsets over all pairs of tokens.

    Args:
        table: (..., 2 H - 1, 2 W - 1), the bias of the offsets (query - key), from -(H - 1) and -(W - 1) up.
        grid: (height, width) in tokens.

    Returns:
        (..., H * W, H * W): queries, then keys.
    """
    return _windows(table, grid).flip((-2, -1)).flatten(-2).flatten(-3, -2)


def bias_of_queries(table: Tensor, grid: tuple[int, int], queries: Tensor) -> Tensor:
    """The rows of `bias_of_pairs` that belong to some queries.

    Args:
        table: (..., 2 H - 1, 2 W - 1).
        grid: (height, width) in tokens.
        queries: Their places in the row-major order of the grid, int64 (queries,).

    Returns:
        (..., queries, H * W).
    """
    windows = _windows(table, grid)[..., queries // grid[1], queries % grid[1], :, :]
    return windows.flip((-2, -1)).flatten(-2)


def _windows(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """The bias of each query to all keys, with the keys backwards: a view, (..., H, W, H, W)."""
    return table.unfold(-2, grid[0], 1).unfold(-2, grid[1], 1)
