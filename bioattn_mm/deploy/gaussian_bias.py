"""Bias of all pairs of tokens from a table of relative positions."""

import torch
from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor

from .sizes import Grid, from_sizes

BIAS_OF_PAIRS = 'bioattn_mm.layers.bias_of_pairs'


@FUNCTION_REWRITER.register_rewriter(BIAS_OF_PAIRS)
def bias_of_pairs__gather(table: Tensor, grid: Grid) -> Tensor:
    """(..., 2 H - 1, 2 W - 1) to (..., H * W, H * W); one Gather for each axis, because ONNX has no strided views."""
    leading = [int(length) for length in table.shape[:-2]]
    with from_sizes(FUNCTION_REWRITER.get_context(BIAS_OF_PAIRS).cfg):
        height, width = grid
        rows, columns = (
            (torch.arange(length)[:, None] - torch.arange(length) + length - 1).reshape(-1)
            for length in (height, width)
        )
    bias = table.index_select(-2, rows).index_select(-1, columns)
    bias = bias.reshape(*leading, height, height, width, width).transpose(-3, -2)
    return bias.reshape(*leading, height * width, height * width)
