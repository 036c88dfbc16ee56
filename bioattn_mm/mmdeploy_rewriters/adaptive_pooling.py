"""Adaptive average pooling as two matrix products, exact at every size."""

import torch
from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import IR
from torch import Tensor
from torch.nn.modules.utils import _pair

from .sizes import Grid, Length, divide, from_sizes

NAME = 'torch.nn.functional.adaptive_avg_pool2d'


@FUNCTION_REWRITER.register_rewriter(NAME, ir=IR.ONNX)
def adaptive_avg_pool2d__exact(input: Tensor, output_size: int | Grid) -> Tensor:
    """(..., H, W) to (..., H', W').

    mmdeploy's own rewriter gives all cells the same size, rounded down and fixed at export.
    """
    with from_sizes(FUNCTION_REWRITER.get_context(NAME).cfg):
        rows, columns = averaging_matrices(input.shape[-2:], _pair(output_size), input.dtype)
    return rows @ input @ columns.T


def averaging_matrices(grid: Grid, pooled_grid: Grid, dtype: torch.dtype) -> list[Tensor]:
    """Weights of the tokens in each pooling cell, for each axis: (H', H) and (W', W)."""
    matrices = []
    for length, pooled_length in zip(grid, pooled_grid):
        start, end = (bound[:, None] for bound in cells(length, pooled_length))
        position = torch.arange(length)
        inside = (position >= start) & (position < end)
        matrices.append(inside.to(dtype) / (end - start).to(dtype))
    return matrices


def cells(length: Length, pooled_length: Length) -> tuple[Tensor, Tensor]:
    """Start and end (exclusive) of each pooling cell along an axis, in tokens: int64 (pooled_length,) each."""
    cell = torch.arange(pooled_length)
    return divide(cell * length, pooled_length), divide((cell + 1) * length + pooled_length - 1, pooled_length)
