"""Other position biases than log-CPB, for the ablations of TransNeXt (table 6)."""

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ....ops import log_cpb_table
from ....ops.arguments import full_precision
from ....ops.constants import cached_constant
from ....registry import MODELS
from ...common.hooks import weight_and_bias
from ...common.layout import Grid
from ..position_bias import LogCPB, PositionBias, log_spaced, offsets_of_grid


@MODELS.register_module()
class LogCPBOfBothPaths(LogCPB):
    """Log-CPB for the window, too: the MLP of the pooled tokens' bias gives that of the window's tokens.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 2. That both paths share one MLP follows from the number of
    parameters there, 28.2 M as without this change. It takes the arguments of `LogCPB`.
    """

    def of_window(self, window_size: int) -> Tensor:
        """Bias of the tokens of a window, in row-major order: (heads, k * k)."""
        weight, bias = weight_and_bias(self.fc1)
        coordinates = (
            _window_coordinates(window_size, length, weight.dtype, weight.device) for length in self.pretrain_grid
        )
        return log_cpb_table(*coordinates, weight, bias, *weight_and_bias(self.fc2)).flatten(1)


@cached_constant
def _window_coordinates(window_size: int, pretrain_length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Coordinates of the offsets in a window along one axis, computed in float64: (k,), descending."""
    offsets = window_size // 2 - torch.arange(window_size, dtype=torch.float64)  # query - key
    return log_spaced(offsets, pretrain_length).to(device, dtype)


@MODELS.register_module()
class RelativePositionBias(PositionBias):
    """A learned number for each head and offset of two cells of the pooled grid, resized bilinearly to other grids.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 4. The offset is that between the cell that the query lies in and
    the pooled token, (2 Ph - 1) (2 Pw - 1) numbers a head: the paper does not say what is learned, but its 28.1 M
    parameters leave room for no more. That other sizes are resized as by 'interpolate' is chosen here. The grids are
    those of the pre-training; both are the same where tokens attend to all tokens.
    """

    def __init__(self, num_heads: int, pretrain_grid: Grid, pretrain_pooled_grid: Grid) -> None:
        super().__init__('interpolate', pretrain_grid, pretrain_pooled_grid)
        numbers = (2 * length - 1 for length in pretrain_pooled_grid)
        self.offsets = nn.Parameter(trunc_normal_(torch.empty(num_heads, *numbers), std=0.02))

    def _table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        rows, columns = (_cells(*lengths, self.offsets.device) for lengths in zip(grid, pooled_grid))
        return full_precision(self.offsets).index_select(1, rows).index_select(2, columns)


@cached_constant
def _cells(length: int, pooled_length: int, device: torch.device) -> Tensor:
    """How many cells lie between query and pooled token at each offset, counted from the least: int64 (R,)."""
    cell = length / pooled_length
    cells = (offsets_of_grid(length, pooled_length) + (cell - 1) / 2).div(cell).add(1e-9).floor().long()
    return (cells.clamp(1 - pooled_length, pooled_length - 1) + pooled_length - 1).to(device)


@MODELS.register_module()
class NoPositionBias(PositionBias):
    """No bias of pooled tokens and none of the window: what is left of positions is the convolutions' zero padding.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 1. The learnable tokens stay.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer('zero', torch.zeros(num_heads), persistent=False)

    def of_window(self, window_size: int) -> Tensor:
        """As in `LogCPBOfBothPaths`."""
        return self._zeros(window_size**2)

    def _table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        return self._zeros(*(len(offsets_of_grid(*lengths)) for lengths in zip(grid, pooled_grid)))

    def _zeros(self, *shape: int) -> Tensor:
        zero = full_precision(self.zero)
        return zero.new_zeros(len(zero), *shape)
