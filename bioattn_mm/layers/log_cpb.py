"""Log-spaced continuous position bias between the tokens of a grid and its average pooling."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..ops import log_cpb_table
from .size_cache import SizeCache


class LogCPB(nn.Module):
    """Position bias of each head from an MLP over log-spaced relative coordinates.

    Source: TransNeXt (Shi, CVPR 2024), section 3.2, after the log-CPB of Swin Transformer V2. The coordinate of a
    pair along one axis is `x = 8 (query - pooled) / (pretrain_grid - 1)`, in tokens, then
    `sign(x) log2(|x| + 1) / log2(8)`; a pooled token lies at the mean position of the tokens it averages.

    The pairs of a grid and its pooling are a product of two axes, so their distinct coordinates are the outer
    product of the distinct vertical and horizontal offsets. The MLP runs on these alone: R * C coordinates,
    about (2 H) (2 W), for H * W * Ph * Pw pairs.

    Args:
        num_heads: Attention heads.
        pretrain_grid: Token grid (height, width) of the pre-training size: the unit of the coordinates.
        bias_mode: 'extrapolate' computes the coordinates of the actual grid; 'interpolate' computes the bias of
            `train_grid` and resizes it bilinearly to the actual one.
        train_grid: Token grid (height, width) of the training size; used by 'interpolate' only.
        train_pooled_grid: Its pooled grid; used by 'interpolate' only.
        hidden_channels: Width of the MLP.
    """

    def __init__(
        self,
        num_heads: int,
        pretrain_grid: tuple[int, int],
        bias_mode: str = 'extrapolate',
        train_grid: tuple[int, int] | None = None,
        train_pooled_grid: tuple[int, int] | None = None,
        hidden_channels: int = 512,
    ) -> None:
        super().__init__()
        if bias_mode not in ('extrapolate', 'interpolate'):
            raise InputError(f"bias_mode must be 'extrapolate' or 'interpolate', got {bias_mode!r}")
        if bias_mode == 'interpolate' and (train_grid is None or train_pooled_grid is None):
            raise InputError("bias_mode='interpolate' needs train_grid and train_pooled_grid")
        self.pretrain_grid = pretrain_grid
        self.bias_mode = bias_mode
        self.train_grid = train_grid
        self.train_pooled_grid = train_pooled_grid
        self.fc1 = nn.Linear(2, hidden_channels)
        self.fc2 = nn.Linear(hidden_channels, num_heads)
        self._tables = SizeCache()

    def forward(self, grid: tuple[int, int], pooled_grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Bias between every token of `grid` and every token of `pooled_grid`, both (height, width).

        Returns:
            `bias`, float32 or float64 (heads, R, W, Pw), and `rows`, int64 (H, Ph): the bias between query (i, j)
            and pooled token (u, v) is `bias[:, rows[i, u], j, v]`.
        """
        resize = self.bias_mode == 'interpolate'
        source_grid, source_pooled_grid = (self.train_grid, self.train_pooled_grid) if resize else (grid, pooled_grid)
        table = self._tables.get(
            self, (source_grid, source_pooled_grid), lambda: self._table(source_grid, source_pooled_grid)
        )
        rows, columns = (_offset_index(source_grid[axis], source_pooled_grid[axis], table.device) for axis in (0, 1))
        bias = table.index_select(2, columns.flatten()).unflatten(2, columns.shape)
        if resize and (source_grid, source_pooled_grid) != (grid, pooled_grid):
            bias = _resize(bias, rows, grid, pooled_grid)
            rows = torch.arange(bias.shape[1], device=bias.device).view(grid[0], pooled_grid[0])
        return bias, rows

    def train(self, mode: bool = True) -> 'LogCPB':
        self._tables.clear()
        return super().train(mode)

    def _table(self, grid: tuple[int, int], pooled_grid: tuple[int, int]) -> Tensor:
        """Bias of every pair of distinct vertical and horizontal offsets: (heads, R, C)."""
        device = self.fc1.weight.device
        with torch.autocast(device.type, enabled=False):
            dtype = torch.promote_types(self.fc1.weight.dtype, torch.float32)
            fc1_weight, fc1_bias, fc2_weight, fc2_bias = (
                parameter.to(dtype) for parameter in (self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)
            )
            vertical, horizontal = (
                self._coordinates(grid[axis], pooled_grid[axis], self.pretrain_grid[axis]).to(device, dtype)
                for axis in (0, 1)
            )
            # The first layer is linear, so it splits into one term for each axis.
            vertical = torch.outer(vertical, fc1_weight[:, 0]) + fc1_bias  # (R, hidden)
            horizontal = torch.outer(horizontal, fc1_weight[:, 1])  # (C, hidden)
            return log_cpb_table(vertical, horizontal, fc2_weight, fc2_bias)

    @staticmethod
    def _coordinates(length: int, pooled_length: int, pretrain_length: int) -> Tensor:
        """Log-spaced coordinates of the distinct offsets along one axis: float64 (R,), ascending."""
        # A pre-training grid of a single token has no unit of length; its one offset is zero anyway.
        scaled = _distinct_offsets(length, pooled_length) * (8 / max(1, pretrain_length - 1))
        return scaled.sign() * torch.log2(scaled.abs() + 1) / math.log2(8)


def cell_centres(length: int, pooled_length: int) -> Tensor:
    """Mean token index of each cell of adaptive average pooling: float64 (pooled_length,)."""
    return torch.tensor(_doubled_centres(length, pooled_length), dtype=torch.float64) / 2


def _doubled_centres(length: int, pooled_length: int) -> list[int]:
    """Twice the mean token index of each cell of adaptive average pooling: integers, since cells are runs."""
    starts = [cell * length // pooled_length for cell in range(pooled_length)]
    ends = [math.ceil((cell + 1) * length / pooled_length) for cell in range(pooled_length)]
    return [start + end - 1 for start, end in zip(starts, ends)]


def _offset_range(length: int, pooled_length: int) -> range:
    """Twice the offsets (token - cell centre) that occur along one axis, as evenly spaced integers.

    Where all cells have the same size, the doubled centres are all even or all odd and every value of the range
    occurs; otherwise a few of them may not.
    """
    centres = _doubled_centres(length, pooled_length)
    step = 2 if len({centre % 2 for centre in centres}) == 1 else 1
    return range(-centres[-1], 2 * (length - 1) - centres[0] + 1, step)


def _distinct_offsets(length: int, pooled_length: int) -> Tensor:
    """Distinct offsets (token - cell centre) along one axis, in tokens: float64 (R,), ascending."""
    offsets = _offset_range(length, pooled_length)
    return torch.arange(offsets.start, offsets.stop, offsets.step, dtype=torch.float64) / 2


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # what is kept may be used in training later
def _offset_index(length: int, pooled_length: int, device: torch.device) -> Tensor:
    """Position in `_distinct_offsets` of each pair of token and cell: int64 (length, pooled_length)."""
    offsets = _offset_range(length, pooled_length)
    centres = torch.tensor(_doubled_centres(length, pooled_length), device=device)
    doubled = 2 * torch.arange(length, device=device)[:, None] - centres
    return (doubled - offsets.start) // offsets.step


def _resize(bias: Tensor, rows: Tensor, grid: tuple[int, int], pooled_grid: tuple[int, int]) -> Tensor:
    """Resize a bias over all four axes of its pairs: (heads, R, W, Pw) to (heads, H' * Ph', W', Pw').

    Resizing keys and then queries bilinearly acts on each of the four axes by itself, so the horizontal pair of
    axes can be resized first, while the vertical pair is still R rows instead of H * Ph.
    """
    heads = bias.shape[0]
    bias = F.interpolate(bias, (grid[1], pooled_grid[1]), mode='bilinear', align_corners=False)
    bias = bias.index_select(1, rows.flatten()).unflatten(1, rows.shape)  # (heads, H, Ph, W', Pw')
    bias = bias.flatten(3).permute(0, 3, 1, 2)
    bias = F.interpolate(bias, (grid[0], pooled_grid[0]), mode='bilinear', align_corners=False)
    return bias.flatten(2).transpose(1, 2).reshape(heads, -1, grid[1], pooled_grid[1])
