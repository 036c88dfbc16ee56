"""Bicubic resizing of what is learned for one grid to another."""

import torch
from torch import Tensor


def resize_bicubic(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """What `F.interpolate(..., mode='bicubic', antialias=True)` gives, as two matrix products.

    PyTorch 2.11 cannot compile the backward pass of its own function for more than one size.

    Args:
        x: (h, w, C), floating point.
        grid: (H, W).

    Returns:
        (H, W, C).
    """
    height, width, channels = x.shape
    rows = resizing_matrix(height, grid[0], x)
    columns = resizing_matrix(width, grid[1], x)
    return columns @ (rows @ x.reshape(height, width * channels)).reshape(-1, width, channels)


def resizing_matrix(length: int, target: int, like: Tensor) -> Tensor:
    """Weights of the positions of an axis in each position of another length.

    Args:
        length: Of the axis.
        target: Of the other.
        like: Has the dtype and the device.

    Returns:
        (target, length), rows of sum 1.
    """
    places, centres = (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5 for count in (length, target))
    # The target's length as a tensor, since it is a number that compilers and exporters cannot follow everywhere.
    step = length / torch.ones_like(centres).sum()
    # Coarser positions average over what they cover; finer ones interpolate.
    distance = (places - centres[:, None] * step).abs() / step.clamp(min=1)
    # Keys' kernel of a = -1/2.
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    return weights / weights.sum(-1, keepdim=True)
