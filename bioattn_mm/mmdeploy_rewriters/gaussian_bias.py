"""Attention with a relative position bias, and the bias of all pairs of tokens, which it has in a graph."""

import torch
import torch.nn.functional as F
from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor

from ..ops.relative_bias import bias_of_pairs
from .sizes import Grid, from_sizes

ATTENTION = 'bioattn_mm.ops.relative_bias_attention'
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


@FUNCTION_REWRITER.register_rewriter(ATTENTION)
def relative_bias_attention__formula(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float | None = None, backend: str | None = None
) -> Tensor:
    """softmax(scale q k^T + bias) v: three (B, H, W, heads, d) to the same."""
    batch, height, width = query.shape[:3]
    heads, channels = int(query.shape[3]), int(query.shape[4])
    query, key, value = (x.reshape(batch, -1, heads, channels).transpose(1, 2) for x in (query, key, value))
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias_of_pairs(bias, (height, width)), scale=scale
    )
    return output.transpose(1, 2).reshape(batch, height, width, heads, channels)
