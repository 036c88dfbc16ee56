"""TransNeXt's log-spaced position bias."""

import torch
from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import Tensor

from ..layers import LogCPB
from ..layers.log_cpb import _resize
from .adaptive_pooling import cells
from .sizes import Grid, Length, divide, integers, not_traced

FORWARD = 'bioattn_mm.layers.LogCPB.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def log_cpb__forward(self: LogCPB, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor]:
    """The bias is a constant in a graph of fixed size; otherwise the graph resizes it or computes it with the MLP."""
    context = FUNCTION_REWRITER.get_context(FORWARD)
    if not is_dynamic_shape(context.cfg):
        with not_traced():
            return context.origin_func(self, integers(grid), integers(pooled_grid))
    if self.bias_mode == 'interpolate':
        with not_traced():
            bias, rows = context.origin_func(self, self.train_grid, self.train_pooled_grid)
        rows_now = torch.arange(grid[0] * pooled_grid[0]).reshape(grid[0], pooled_grid[0])
        return _resize(bias, rows, grid, pooled_grid), rows_now
    (vertical, rows), (horizontal, columns) = (
        offsets_of_axis(*lengths) for lengths in zip(grid, pooled_grid, self.pretrain_grid)
    )
    vertical, horizontal = self.spaced(vertical), self.spaced(horizontal)
    weight = self.fc1.weight
    hidden = torch.relu((vertical * weight[:, 0])[:, None] + (horizontal * weight[:, 1] + self.fc1.bias))
    table = self.fc2(hidden).permute(2, 0, 1)
    bias = table.index_select(2, columns.reshape(-1))
    return bias.reshape(self.fc2.out_features, -1, grid[1], pooled_grid[1]), rows


def offsets_of_axis(length: Length, pooled_length: Length, pretrain_length: int) -> tuple[Tensor, Tensor]:
    """Coordinates of all offsets along one axis, not spaced yet, and the index of each pair's offset among them.

    Returns:
        float32 (R, 1) and int64 (length, pooled_length).
    """
    start, end = cells(length, pooled_length)
    centre = start + end - 1  # twice the centre: offsets are counted in half tokens
    # If all cells have the same size, their doubled centres are all even or all odd.
    step = torch.where(torch.as_tensor(length % pooled_length == 0), 2, 1)
    index = divide(2 * torch.arange(length)[:, None] - centre + centre[-1], step)
    offset = torch.arange(-centre[-1], 2 * length - 1 - centre[0], step)
    return offset.to(torch.float32)[:, None] * (4 / max(1, pretrain_length - 1)), index
