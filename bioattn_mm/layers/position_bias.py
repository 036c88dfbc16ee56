"""Other position biases than log-CPB, for the ablations of TransNeXt (table 6)."""

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ..registry import MODELS
from .arguments import full_precision
from .attention_maps import Grid
from .log_cpb import LogCPB, PositionBias, num_offsets


@MODELS.register_module()
class LinearCPB(LogCPB):
    """Position bias by an MLP from linearly spaced coordinates, `(query - pooled) / (pretrain_grid - 1)`.

    Source: TransNeXt (Shi, CVPR 2024), table 6; the bias that Swin Transformer V2 compares log-CPB with. It takes the
    arguments of `LogCPB`.
    """

    @staticmethod
    def spaced(coordinates: Tensor) -> Tensor:
        return coordinates / 8


@MODELS.register_module()
class RelativePositionBias(PositionBias):
    """A learned number for each head and offset of the pre-training grid, resized bilinearly to other grids.

    Source: TransNeXt (Shi, CVPR 2024), table 6; the relative position bias of Swin Transformer. How other sizes are
    handled is chosen here: the bias of all pairs of tokens is resized, as log-CPB's is with 'interpolate'.

    Args:
        num_heads: Number of attention heads.
        pretrain_grid: Token grid (height, width) of the pre-training.
        pretrain_pooled_grid: Pooled grid of the pre-training; the same grid where tokens attend to all tokens.
    """

    def __init__(self, num_heads: int, pretrain_grid: Grid, pretrain_pooled_grid: Grid) -> None:
        super().__init__('interpolate', pretrain_grid, pretrain_pooled_grid)
        numbers = (num_offsets(*lengths) for lengths in zip(pretrain_grid, pretrain_pooled_grid))
        self.offsets = nn.Parameter(trunc_normal_(torch.empty(num_heads, *numbers), std=0.02))

    def _table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        return full_precision(self.offsets)


@MODELS.register_module()
class NoPositionBias(nn.Module):
    """No bias: the tokens' order is told by the zero padding of convolutions and by the window alone.

    Source: TransNeXt (Shi, CVPR 2024), table 6.

    Args:
        num_heads: Number of attention heads.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer('zero', torch.zeros(num_heads, 1, 1), persistent=False)

    def forward(self, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor]:
        """As in `PositionBias`."""
        return self._zeros(1, grid[1], pooled_grid[1]), self._indices(grid[0], pooled_grid[0])

    def table(self, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """As in `PositionBias`."""
        return self._zeros(1, 1), *(self._indices(*lengths) for lengths in zip(grid, pooled_grid))

    def of_offsets(self, grid: Grid) -> Tensor:
        """As in `PositionBias`."""
        return self._zeros(*(2 * length - 1 for length in grid))

    def _zeros(self, *shape: int) -> Tensor:
        zero = full_precision(self.zero)
        return zero.new_zeros(len(zero), *shape)

    def _indices(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.zero.device)
