"""PerViT's peripheral attention, with the position-based part for all queries at once instead of in chunks."""

import torch
import torch.nn.functional as F
from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import Tensor

from ..errors import InputError
from ..layers import DistanceEmbedding, PeripheralAttention, PeripheralPosition
from ..layers.peripheral_attention import KEY_MARGIN
from ..ops.peripheral_attention import attend
from .sizes import Grid, integers, not_traced

FORWARD = 'bioattn_mm.layers.PeripheralAttention.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def peripheral_attention__forward(
    self: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding
) -> Tensor:
    """(B, H, W, C) to (B, H, W, C). In a graph of fixed size, log Phi_p is a constant of heads * N * N numbers."""
    context = FUNCTION_REWRITER.get_context(FORWARD)
    if is_dynamic_shape(context.cfg):
        for part, paper in ((self.position, PeripheralPosition), (distance_embedding, DistanceEmbedding)):
            if not isinstance(part, paper):
                raise InputError(
                    f'{type(part).__name__}, which an ablation has in place of {paper.__name__}, can be exported for '
                    'images of a fixed size only'
                )
        bias = log_phi_p(self.position, distance_embedding, x.shape[1:3])
    else:
        with not_traced():
            bias = self.position_bias(integers(x.shape[1:3]), distance_embedding)
    output = attend(*self._query_key_value(x), bias)
    return self.proj(output.transpose(1, 2).reshape(x.shape))


def log_phi_p(position: PeripheralPosition, distance_embedding: DistanceEmbedding, grid: Grid) -> Tensor:
    """log Phi_p of all pairs of tokens (PerViT, eq. 7-8), (heads, N, N), up to a constant for each query.

    The first convolution runs once over the plane of all offsets. The plane of each query's keys, with the margin for
    the second convolution, is gathered from its output.
    """
    height, width = grid
    plane = position.conv1(distance_embedding(grid)[None])[0]  # (channels, 2 H + 1, 2 W + 1)
    rows, columns = (
        (torch.arange(length - 1, -1, -1)[:, None] + torch.arange(length + KEY_MARGIN)).reshape(-1) for length in grid
    )
    hidden = plane.index_select(1, rows).index_select(2, columns)
    hidden = hidden.reshape(-1, height, height + KEY_MARGIN, width, width + KEY_MARGIN).permute(1, 3, 0, 2, 4)
    hidden = hidden.reshape(height * width, position.conv1.out_channels, height + KEY_MARGIN, width + KEY_MARGIN)
    hidden = position.conv2(F.relu(position.norm1(hidden)))
    norm = position.norm2
    # torch.group_norm, because F.group_norm raises an error for a single token.
    x = torch.group_norm(hidden, norm.num_groups, norm.weight, norm.bias, norm.eps)
    # Equal to logsigmoid(x), which the exporter writes as log(sigmoid(x)): -inf for very negative x.
    return -F.softplus(-x).reshape(height * width, norm.num_groups, -1).transpose(0, 1)
