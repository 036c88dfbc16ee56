"""TransNeXt's way to pooled tokens in one pass: GELU and average pooling, on a GPU with the LayerNorm after it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .add_norm import why_not_norm
from .arguments import check_dtype, check_fits, without_autocast
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
        backend: 'cpu' (one pass; 16 channels or more, no float16) or 'reference'; by default see `choose_backend`.

    Returns:
        (B, *grid, C) in the dtype of `x`.
    """
    _check(x, grid)
    takes = x.device.type == 'cpu' and x.shape[3] >= LEAST_CHANNELS.get(x.dtype, float('inf'))
    backend = backend or (None if takes else 'reference')
    if choose_backend(x.device, backend, None if takes else UNSUPPORTED) == 'cpu':
        return differentiable('gelu_pool', x, *grid)
    return average_pool(F.gelu(x).permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)


def gelu_pool_norm(
    x: Tensor, weight: Tensor, bias: Tensor, grid: tuple[int, int], eps: float, backend: str | None = None
) -> Tensor:
    """LayerNorm of the average pooling of `F.gelu(x)`, of tokens with the channels last, without autocast.

    The CUDA kernels compute in float32, and round the pooled tokens and the result alone.

    Args:
        x: (B, H, W, C), float16, bfloat16, float32 or float64.
        weight: Weight of the norm, (C,), in the dtype of `x` as the bias.
        bias: Bias of the norm, (C,).
        grid: Height and width of what is pooled; cells are those of `F.adaptive_avg_pool2d`.
        eps: What the norm adds to the variance.
        backend: 'cuda' (one launch; a grid that divides that of `x`, C even, no float64) or 'reference'.

    Returns:
        (B, *grid, C) in the dtype of `x`.
    """
    _check(x, grid)
    check_fits('x', x, x.dtype, weight=(weight, x.shape[3:]), bias=(bias, x.shape[3:]))
    unsupported, tokens = why_not_norm(x, 'gelu_pool_norm'), tuple(x.shape[1:3])
    if None in map(size_of_cells, tokens, grid):
        unsupported = f'gelu_pool_norm on CUDA takes a grid that divides that of x, got {grid} and {tokens}'
    if choose_backend(x.device, backend, unsupported) != 'reference':
        return differentiable('gelu_pool_norm', x, weight, bias, *grid, eps)[0]
    with without_autocast(x):
        return F.layer_norm(gelu_pool(x, grid, 'reference'), weight.shape, weight, bias, eps)


def _check(x: Tensor, grid: tuple[int, int]) -> None:
    if x.dim() != 4 or 0 in x.shape[1:]:
        raise ValueError(f'x must be (B, H, W, C), got shape {tuple(x.shape)}')
    check_dtype('x', x)
    # Lengths of a graph for any size are symbols, or tensors.
    if any(isinstance(length, int) and length < 1 for length in grid):
        raise ValueError(f'grid must be 1 x 1 or larger, got {grid[0]} x {grid[1]}')


def average_pool(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """`F.adaptive_avg_pool2d`, (B, C, H, W) to (B, C, *grid)."""
    cells = tuple(size_of_cells(length, number) for length, number in zip(x.shape[2:], grid))
    # Over whole cells both are the same average; adaptive pooling has no deterministic backward pass on a GPU. An
    # exported graph is for all sizes.
    return F.avg_pool2d(x, cells) if all(cells) and not is_exported() else F.adaptive_avg_pool2d(x, grid)
