"""Learned absolute position embedding at any grid size."""

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ...ops.portable import is_same_grid
from ...registry import MODELS
from .resizing import resize_bicubic


@MODELS.register_module()
class PositionEmbedding(nn.Module):
    """Adds a learned vector to the token of each position; for other grids it is resized (bicubic).

    Args:
        embed_dims: Width of the tokens.
        grid: Token grid (height, width) of the pre-training.
    """

    def __init__(self, embed_dims: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.weight = nn.Parameter(trunc_normal_(torch.empty(1, grid[0] * grid[1], embed_dims), std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return x + self.of_grid(tuple(x.shape[1:3]))

    def of_grid(self, grid: tuple[int, int]) -> Tensor:
        """The embedding of a grid (H, W): (H, W, C)."""
        weight = self.weight.reshape(*self.grid, -1)
        return weight if is_same_grid(grid, self.grid) else resize_bicubic(weight, grid)
