"""GELU and average pooling, TransNeXt's way to pooled tokens, in one pass."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import choose_backend
from .portable import is_exported, size_of_cells
from .registration import differentiable

# Channels that fill a vector of the kernel, of 64 bytes.
LEAST_CHANNELS = {torch.bfloat16: 16, torch.float32: 16, torch.float64: 8}
UNSUPPORTED = 'gelu_pool is compiled for the CPU, for bfloat16, float32 and float64, and 16 channels or more'


def gelu_pool(x: Tensor, grid: tuple[int, int], backend: str | None = None) -> Tensor:
    """Adaptive average pooling of `F.gelu(x)`, of tokens with the channels last.

    Args:
        x: (B, H, W, C).
        grid: Height and width of what is pooled; cells are those of `F.adaptive_avg_pool2d`.
        backend: 'cpu' (one pass, compiled; bfloat16, float32 or float64, and 16 channels or more) or 'reference'
            (PyTorch's operators). By default the environment variable BIOATTN_MM_BACKEND, or else the fastest that
            supports the arguments.

    Returns:
        (B, *grid, C) in the dtype of `x`.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    if x.dim() != 4 or 0 in x.shape[1:]:
        raise ValueError(f'x must be (B, H, W, C), got shape {tuple(x.shape)}')
    # Lengths of a graph for any size are symbols, or tensors.
    if any(isinstance(length, int) and length < 1 for length in grid):
        raise ValueError(f'grid must be 1 x 1 or larger, got {grid[0]} x {grid[1]}')
    takes = x.device.type == 'cpu' and x.shape[3] >= LEAST_CHANNELS.get(x.dtype, float('inf'))
    if not takes and backend is None:
        backend = 'reference'
    if choose_backend(x.device, backend, None if takes else UNSUPPORTED) == 'cpu':
        return differentiable('gelu_pool', x, *grid)
    return average_pool(F.gelu(x).permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)


def average_pool(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """`F.adaptive_avg_pool2d`, (B, C, H, W) to (B, C, *grid)."""
    cells = tuple(size_of_cells(length, number) for length, number in zip(x.shape[2:], grid))
    # Over whole cells both are the same average; adaptive pooling has no deterministic backward pass on a GPU. An
    # exported graph is for all sizes.
    return F.avg_pool2d(x, cells) if all(cells) and not is_exported() else F.adaptive_avg_pool2d(x, grid)
