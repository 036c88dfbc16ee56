"""Position bias between a grid of tokens and its average pooling: TransNeXt's, log-spaced and continuous."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from ...ops import log_cpb_table
from ...ops.arguments import without_autocast
from ...ops.constants import cached_constant
from ...ops.portable import cells_of_axis, is_same_grid, is_symbol, size_of_cells
from ...registry import MODELS
from ..common.arguments import weight_and_bias
from ..common.grid import Grid
from ..common.size_cache import SizeCache, SizeCaching


class PositionBias(SizeCaching):
    """Base of the position biases that are functions of the offset between a token and a pooled token.

    A pooled token lies at the mean position of the tokens it averages. Many pairs have the same offset: a subclass
    computes `_table(grid, pooled_grid)`, the bias of each combination of a vertical and a horizontal offset,
    (heads, R, C), about (2 H) (2 W) numbers a head instead of H * W * Ph * Pw.

    Args:
        bias_mode: 'extrapolate' takes the bias of the actual grid; 'interpolate' that of `train_grid`, resized
            bilinearly to the actual grid.
        train_grid: Token grid (height, width) of the training; needed by 'interpolate' only.
        train_pooled_grid: Pooled grid of the training; the same.
    """

    def __init__(
        self, bias_mode: str = 'extrapolate', train_grid: Grid | None = None, train_pooled_grid: Grid | None = None
    ) -> None:
        super().__init__()
        if bias_mode not in ('extrapolate', 'interpolate'):
            raise InputError(f"bias_mode must be 'extrapolate' or 'interpolate', got {bias_mode!r}")
        if bias_mode == 'interpolate' and (train_grid is None or train_pooled_grid is None):
            raise InputError("bias_mode='interpolate' needs train_grid and train_pooled_grid")
        self.bias_mode = bias_mode
        self.train_grid = train_grid
        self.train_pooled_grid = train_pooled_grid
        self._tables = SizeCache()

    def forward(self, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor]:
        """Bias between all tokens of `grid` and all tokens of `pooled_grid`, both (height, width).

        Returns:
            `bias`, float32 or float64 (heads, R, W, Pw), and `rows`, int64 (H, Ph): the bias between query (i, j)
            and pooled token (u, v) is `bias[:, rows[i, u], j, v]`.
        """
        table, rows, columns = self.table(grid, pooled_grid)
        return _of_pairs_of_columns(table, columns), rows

    def table(self, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """The same bias before it is spread over pairs of columns.

        Returns:
            `table`, (heads, R, C), `rows`, int64 (H, Ph), and `columns`, int64 (W, Pw): the bias is
            `table[:, rows[i, u], columns[j, v]]`.
        """
        resize = self.bias_mode == 'interpolate'
        grids = (self.train_grid, self.train_pooled_grid) if resize else (grid, pooled_grid)
        table = self._kept_table(*grids)
        rows, columns = (_offset_index(*lengths, table.device) for lengths in zip(*grids))
        if not resize or is_same_grid(self.train_grid + self.train_pooled_grid, grid + pooled_grid):
            return table, rows, columns
        bias = _resize(_of_pairs_of_columns(table, columns), rows, grid, pooled_grid)
        rows, columns = (
            torch.arange(length * pooled_length, device=bias.device).view(length, pooled_length)
            for length, pooled_length in zip(grid, pooled_grid)
        )
        return bias.flatten(2), rows, columns

    def of_offsets(self, grid: Grid) -> Tensor | None:
        """Bias of all offsets between two tokens of `grid`, where the pooled tokens are the tokens themselves.

        Returns:
            (heads, 2 H - 1, 2 W - 1), with the offsets (query - key) from -(H - 1) and -(W - 1) upwards; None where
            the bias is resized to the grid: it is no function of the offset then.
        """
        known = self.train_grid, self.train_pooled_grid
        if self.bias_mode == 'interpolate' and not all(is_same_grid(train_grid, grid) for train_grid in known):
            return None
        return self._kept_table(grid, grid)

    def resized_rows(self, grid: Grid) -> Callable[[slice], Tensor]:
        """The bias resized to a grid, where the pooled tokens are the tokens themselves, for some rows of queries.

        The bias of all pairs would have heads * (H * W)^2 elements. Here the horizontal axes are resized at once, for
        all vertical offsets of the training grid, and the vertical ones for the rows asked for.

        Returns:
            A function that takes rows of `grid`, a slice, and gives their bias: (heads, rows * W, H * W).
        """
        grids = (self.train_grid, self.train_pooled_grid)
        table = self._kept_table(*grids)
        offsets, columns = (_offset_index(*lengths, table.device) for lengths in zip(*grids))
        bias = _of_pairs_of_columns(table, columns)
        bias = F.interpolate(bias, (grid[1], grid[1]), mode='bilinear', align_corners=False)
        bias = bias.transpose(1, 2).contiguous()  # (heads, W, R, W)
        queries, keys = (
            F.interpolate(identity[None], grid[0], mode='linear', align_corners=False)[0].T
            for identity in (torch.eye(trained[0], dtype=bias.dtype, device=bias.device) for trained in grids)
        )
        # One where a pair of rows of the training grid has the offset, of R offsets.
        has_offset = (offsets[..., None] == torch.arange(table.shape[1], device=table.device)).to(bias.dtype)

        def bias_of_rows(rows: slice) -> Tensor:
            with without_autocast(bias):
                weights = torch.einsum('ia,ub,abr->iur', queries[rows], keys, has_offset)
                pairs = (weights.flatten(0, 1) @ bias).unflatten(2, weights.shape[:2])  # (heads, W, rows, H, W)
                return pairs.transpose(1, 2).flatten(3).flatten(1, 2)

        return bias_of_rows

    def _kept_table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        """`_table`, cached for each size in eval mode."""
        return self._tables.get(self, (grid, pooled_grid), lambda: self._table(grid, pooled_grid))


@MODELS.register_module()
class LogCPB(PositionBias):
    """Position bias of each head, computed by an MLP from log-spaced relative coordinates.

    Source: TransNeXt (Shi, CVPR 2024), section 3.1.3, after the log-CPB of Swin Transformer V2. The coordinate of a
    pair along one axis is `x = 8 (query - pooled) / (pretrain_grid - 1)`, in tokens, then
    `sign(x) log2(|x| + 1) / log2(8)`. The MLP runs once for each combination of a vertical and a horizontal offset.

    Args:
        num_heads: Number of attention heads.
        pretrain_grid: Token grid (height, width) of the pre-training, the unit of the coordinates.
        bias_mode: As in `PositionBias`, as the next two.
        hidden_dims: Width of the MLP.
    """

    def __init__(
        self,
        num_heads: int,
        pretrain_grid: Grid,
        bias_mode: str = 'extrapolate',
        train_grid: Grid | None = None,
        train_pooled_grid: Grid | None = None,
        hidden_dims: int = 512,
    ) -> None:
        super().__init__(bias_mode, train_grid, train_pooled_grid)
        self.pretrain_grid = pretrain_grid
        self.fc1 = nn.Linear(2, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, num_heads)

    def _table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        return self.table_of((*weight_and_bias(self.fc1), *weight_and_bias(self.fc2)), grid, pooled_grid)

    def table_of(self, layers: Sequence[Tensor], grid: Grid, pooled_grid: Grid) -> Tensor:
        """`_table` by weight and bias of both layers; of several MLPs, stacked, (MLPs, heads, R, C)."""
        coordinates = (
            _coordinates(*lengths, layers[0].dtype, layers[0].device)
            for lengths in zip(grid, pooled_grid, self.pretrain_grid)
        )
        return log_cpb_table(*coordinates, *layers)


def tables_of(
    biases: Sequence[PositionBias], grid: Grid, pooled_grid: Grid, layers: Sequence[Sequence[Tensor]] = ()
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """`PositionBias.table` of the biases of a stage, by one operator where they are `LogCPB` and computed anew.

    `layers` are what `LogCPB.table_of` takes, of all biases: four sequences of tensors; of others they are empty.
    """
    first = biases[0]
    if not layers or any(
        bias.bias_mode != 'extrapolate' or bias.pretrain_grid != first.pretrain_grid for bias in biases
    ):
        return [bias.table(grid, pooled_grid) for bias in biases]
    if SizeCache.is_open(first):
        tables = [bias._kept_table(grid, pooled_grid) for bias in biases]
    else:
        tables = first.table_of([torch.stack(tensors) for tensors in layers], grid, pooled_grid).unbind()
    rows, columns = (_offset_index(*lengths, tables[0].device) for lengths in zip(grid, pooled_grid))
    return [(table, rows, columns) for table in tables]


@cached_constant
def _coordinates(
    length: int, pooled_length: int, pretrain_length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Coordinates of the distinct offsets along one axis, computed in float64: (R,), ascending."""
    return log_spaced(offsets_of_grid(length, pooled_length), pretrain_length).to(device, dtype)


def log_spaced(offsets: Tensor, pretrain_length: int) -> Tensor:
    """Coordinates of offsets in tokens along one axis, as the MLP of `LogCPB` takes them."""
    # A pre-training grid of one token would divide by zero.
    x = offsets * (8 / max(1, pretrain_length - 1))
    return x.sign() * torch.log(x.abs() + 1) / math.log(8)


def offsets_of_grid(length: int, pooled_length: int) -> Tensor:
    """The distinct offsets (token - cell centre) along one axis of a table of biases: float64 (R,), ascending."""
    start, step, number = _offset_range(length, pooled_length)
    if is_symbol(number):
        return (torch.arange(number) * step + start).double() / 2
    return torch.arange(start, start + number * step, step, dtype=torch.float64) / 2


def cell_centres(length: int, pooled_length: int) -> Tensor:
    """Mean token index of each cell of adaptive average pooling: float64 (pooled_length,)."""
    return _doubled_centres(length, pooled_length).double() / 2


def _doubled_centres(length: int, pooled_length: int, device: torch.device | None = None) -> Tensor:
    """Twice the mean token index of each cell of adaptive average pooling: int64 (pooled_length,)."""
    if not (is_symbol(length) or is_symbol(pooled_length)):  # on the host: a copy takes a GPU one launch
        starts, ends = cells_of_axis(length, pooled_length, None)
        return (starts + ends - 1).to(device or 'cpu')
    size = size_of_cells(length, pooled_length)
    if size is not None:
        return 2 * size * torch.arange(pooled_length, device=device) + size - 1
    starts, ends = cells_of_axis(length, pooled_length, device)
    return starts + ends - 1


def _offset_range(length: int, pooled_length: int) -> tuple[int, int, int]:
    """Twice the offsets (token - cell centre) along one axis, as evenly spaced integers: start, step and number.

    If all cells have one size, these are the offsets that occur; else there are a few more.
    """
    cell = size_of_cells(length, pooled_length)
    if cell is not None:
        return cell + 1 - 2 * length, 2, 2 * length - cell
    first = (length + pooled_length - 1) // pooled_length - 1
    last = (pooled_length - 1) * length // pooled_length + length - 1
    step, rest = 1, length % pooled_length
    if is_symbol(length) or is_symbol(pooled_length):  # there may be no rest
        step = 2 - (rest.clamp(max=1) if isinstance(rest, Tensor) else torch.sym_min(1, rest))
    return -last, step, (2 * (length - 1) - first + last) // step + 1


@cached_constant
def _offset_index(length: int, pooled_length: int, device: torch.device) -> Tensor:
    """Index of each pair of token and cell in `_offset_range`: int64 (length, pooled_length)."""
    start, step, _ = _offset_range(length, pooled_length)
    doubled = 2 * torch.arange(length, device=device)[:, None] - _doubled_centres(length, pooled_length, device)
    return (doubled - start) // step


def _resize(bias: Tensor, rows: Tensor, grid: Grid, pooled_grid: Grid) -> Tensor:
    """Resize a bias bilinearly in queries and keys: (heads, R, W, Pw) to (heads, H' * Ph', W', Pw').

    The horizontal axes come first, while the vertical ones are still R rows instead of H * Ph.
    """
    heads = bias.shape[0]
    bias = F.interpolate(bias, (grid[1], pooled_grid[1]), mode='bilinear', align_corners=False)
    bias = bias.index_select(1, rows.flatten()).unflatten(1, rows.shape)  # (heads, H, Ph, W', Pw')
    bias = bias.flatten(3).permute(0, 3, 1, 2)
    bias = F.interpolate(bias, (grid[0], pooled_grid[0]), mode='bilinear', align_corners=False)
    return bias.flatten(2).transpose(1, 2).reshape(heads, -1, grid[1], pooled_grid[1])


def _of_pairs_of_columns(table: Tensor, columns: Tensor) -> Tensor:
    """(heads, R, C) to (heads, R, W, Pw) by the column of each pair."""
    return table.index_select(2, columns.flatten()).unflatten(2, columns.shape)


def pooled_grid_of(grid: Grid, sr_ratio: int, pool_size: Grid | None) -> Grid:
    """Pooled grid for a token grid: `pool_size`, or the token grid divided by `sr_ratio`, at least 1 x 1."""

    def pooled_length(length: int) -> int:
        pooled = length // sr_ratio
        if isinstance(pooled, Tensor):  # traced
            return pooled.clamp(min=1)
        # An exported model takes no images of which nothing would be left.
        return pooled if is_symbol(length) else max(1, pooled)

    return pool_size or tuple(map(pooled_length, grid))
