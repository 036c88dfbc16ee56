"""Learned absolute position embedding at any grid size."""

import torch
from timm.layers import resample_abs_pos_embed, trunc_normal_
from torch import Tensor, nn


class PositionEmbedding(nn.Module):
    """Adds a learned vector of each position; other grids than that of the pre-training get it resized (bicubic).

    Args:
        channels: Channels of the tokens.
        grid: Token grid (height, width) of the pre-training.
    """

    def __init__(self, channels: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.weight = nn.Parameter(trunc_normal_(torch.empty(1, grid[0] * grid[1], channels), std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        grid = x.shape[1:3]
        weight = resample_abs_pos_embed(self.weight, list(grid), list(self.grid), num_prefix_tokens=0)
        return x + weight.unflatten(1, grid)
