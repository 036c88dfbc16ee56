"""Where the tokens of a grid are in windows, which may be shifted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .grid import Grid


@dataclass
class Windows:
    """A grid of tokens, shifted and cut into windows, as Swin does.

    The grid is padded at the bottom and right to whole windows, before or after it is rolled.

    Attributes:
        grid: (height, width) in tokens.
        size: (height, width) of a window.
        shift: Rows and columns by which the grid is rolled, up and to the left.
        rolled: (height, width) of what is rolled: of the grid, or of the padded grid.
    """

    grid: Grid
    size: Grid
    shift: Grid = (0, 0)
    rolled: Grid | None = None

    @property
    def padded(self) -> Grid:
        """(height, width) of all windows together, in tokens."""
        return tuple(-(-length // size) * size for length, size in zip(self.grid, self.size))

    @property
    def number(self) -> int:
        """Number of windows."""
        return (self.padded[0] // self.size[0]) * (self.padded[1] // self.size[1])

    def locate(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The windows of some tokens.

        Args:
            queries: Indices of the tokens in the row-major order of the grid, int64 (queries,).

        Returns:
            The window of each token and its place there, both in row-major order, (queries,); and the rows, (queries,
            h), and columns, (queries, w), in the grid that the window consists of. Those of padding lie outside.
        """
        rolled, padded = self.rolled or self.padded, self.padded
        places, keys = [], []
        for axis, place in enumerate((queries // self.grid[1], queries % self.grid[1])):
            size, shift, length = self.size[axis], self.shift[axis], rolled[axis]
            place = (place - shift) % length
            key = (place // size * size)[:, None] + torch.arange(size, device=queries.device)
            places.append(place)
            keys.append(torch.where(key < length, (key + shift) % length, key))
        (row, column), (height, width) = places, self.size
        number = row // height * (padded[1] // width) + column // width
        return number, row % height * width + column % width, *keys
