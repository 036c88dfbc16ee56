"""Resizing as products of matrices: bicubic, of parameters that are learned for one token grid, and linear."""

import torch
from torch import Tensor

from ...ops.arguments import full_precision
from ...ops.constants import cached_constant


def resize_bicubic(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Same result as `F.interpolate(..., mode='bicubic', antialias=True)`, computed with two matrix products.

    (h, w, C) to (H, W, C). PyTorch 2.11 cannot compile the backward pass of that function for more than one size.
    Weights are float32 at least: bfloat16 has no numbers for most positions of a large grid.
    """
    height, width, channels = x.shape
    exact = full_precision(x)
    rows = resizing_matrix(height, grid[0], exact.dtype, x.device)
    columns = resizing_matrix(width, grid[1], exact.dtype, x.device)
    resized = columns @ (rows @ exact.reshape(height, width * channels)).reshape(-1, width, channels)
    return resized.to(x.dtype)


@cached_constant
def resizing_matrix(length: int, target: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weights of the old positions of an axis in each new one, which sum to 1: (target, length)."""
    positions, centres = (torch.arange(count, dtype=dtype, device=device) + 0.5 for count in (length, target))
    # The target's length is computed as a tensor: torch.compile and ONNX export lose track of a Python number here.
    step = length / torch.ones_like(centres).sum()
    # Shrinking widens the kernel to average over all covered positions (antialiasing); enlarging interpolates.
    distance = (positions - centres[:, None] * step).abs() / step.clamp(min=1)
    # Keys' cubic convolution kernel with a = -1/2, for distances below 1 and from 1 to 2.
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    return weights / weights.sum(-1, keepdim=True)


def linear_positions(length: int, target: int, device: torch.device | None = None) -> Tensor:
    """Where the positions of a resized axis lie among its old ones, float64 (target,), from 0 to `length` - 1."""
    centres = torch.arange(target, dtype=torch.float64, device=device) + 0.5
    return (centres * (length / target) - 0.5).clamp(0, length - 1)


def linear_weights(positions: Tensor, length: int) -> Tensor:
    """The weights of the old positions of an axis at each of `linear_positions`, which sum to 1: (target, length)."""
    return (1 - (positions[:, None] - torch.arange(length, device=positions.device)).abs()).clamp(min=0)
