"""Position bias between a grid of tokens and its average pooling: TransNeXt's, log-spaced and continuous."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from ...ops import log_cpb_table
from ...ops.arguments import without_autocast
from ...ops.constants import cached_constant
from ...ops.portable import cells_of_axis, is_same_grid, is_symbol, size_of_cells
from ...ops.relative_bias_attention import bias_of_table, columns_of_pairs
from ...registry import MODELS
from ..common.hooks import weight_and_bias
from ..common.layout import Grid
from ..common.resizing import linear_positions, linear_weights
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
        return bias_of_table(*self.table(grid, pooled_grid))

    def table(self, grid: Grid, pooled_grid: Grid | None = None) -> tuple[Tensor, ...]:
        """The same bias as operators take it (see `cosine_attention`).

        Returns:
            A table (heads, R, C), the rows that are summed for each pair of a query row and a pooled row, int64
            (H, Ph, n), weights (H, Ph, n - 1), and the column of each pair of columns, int64 (W, Pw). Bilinear
            resizing sums four rows, and columns are resized in the table. Without `pooled_grid` keys are the tokens
            themselves, and a table that has all their offsets, (heads, 2 H - 1, 2 W - 1), comes alone.
        """
        return self.tables([self._kept_table(*self.known_grids(grid, pooled_grid))], grid, pooled_grid)[0]

    def known_grids(self, grid: Grid, pooled_grid: Grid | None) -> tuple[Grid, Grid]:
        """The grids for which the table is computed."""
        resize = self.bias_mode == 'interpolate'
        return (self.train_grid, self.train_pooled_grid) if resize else (grid, pooled_grid or grid)

    def tables(self, known: Sequence[Tensor], grid: Grid, pooled_grid: Grid | None) -> list[tuple[Tensor, ...]]:
        """`table` of several biases of one mode and one size, from their tables of `known_grids`."""
        (height, width), (pooled_height, pooled_width) = grid, pooled_grid or grid
        grids, device, dtype = self.known_grids(grid, pooled_grid), known[0].device, known[0].dtype
        vertical, horizontal = zip(*grids)
        if is_same_grid(sum(grids, ()), (height, width, pooled_height, pooled_width)):
            if pooled_grid is None:
                return [(table,) for table in known]
            rows, columns = _offset_index(*vertical, device)[..., None], _offset_index(*horizontal, device)
            return [(table, rows, table.new_empty(*rows.shape[:2], 0), columns) for table in known]
        bias = columns_of_pairs(torch.cat([*known]), _offset_index(*horizontal, device))
        queries = _resizing(width, horizontal[0], dtype, device)
        keys = _resizing(pooled_width, horizontal[1], dtype, device)
        with without_autocast(bias):
            bias = F.linear(F.linear(bias, keys).transpose(2, 3), queries).flatten(2)  # of (pooled column, column)
        rows, weights = _resized_rows(height, pooled_height, *vertical, dtype, device)
        columns = torch.arange(width * pooled_width, device=device).view(pooled_width, width).T
        return [(table, rows, weights, columns) for table in bias.chunk(len(known))]

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
        coordinates = [
            _coordinates(*lengths, layers[0].dtype, layers[0].device)
            for lengths in zip(grid, pooled_grid, self.pretrain_grid)
        ]
        return log_cpb_table(*coordinates, *layers)


def tables_of(
    biases: Sequence[PositionBias], grid: Grid, pooled_grid: Grid | None, layers: Sequence[Sequence[Tensor]] = ()
) -> list[tuple[Tensor, ...]]:
    """`PositionBias.table` of the biases of a stage, by one operator where they are `LogCPB` and computed anew.

    `layers` are what `LogCPB.table_of` takes, of all biases: four sequences of tensors; of others they are empty.
    """
    first = biases[0]
    # Those that are computed together share coordinates.
    if not layers or len({(b.pretrain_grid, b.bias_mode, b.train_grid, b.train_pooled_grid) for b in biases}) > 1:
        return [bias.table(grid, pooled_grid) for bias in biases]
    grids = first.known_grids(grid, pooled_grid)
    if SizeCache.is_open(first):
        known = [bias._kept_table(*grids) for bias in biases]
    else:
        known = first.table_of([torch.stack(tensors) for tensors in layers], *grids).unbind()
    return first.tables(known, grid, pooled_grid)


@cached_constant
def _coordinates(
    length: int, pooled_length: int, pretrain_length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Coordinates of the distinct offsets along one axis, computed in float64: (R,), ascending."""
    # A pre-training grid of one token would divide by zero.
    x = offsets_of_grid(length, pooled_length) * (8 / max(1, pretrain_length - 1))
    return (x.sign() * torch.log(x.abs() + 1) / math.log(8)).to(device, dtype)


def offsets_of_grid(length: int, pooled_length: int) -> Tensor:
    """The distinct offsets (token - cell centre) along one axis of a table of biases: float64 (R,), ascending."""
    start, step, number = _offset_range(length, pooled_length)
    return (torch.arange(number) * step + start).double() / 2


def doubled_centres(length: int, pooled_length: int, device: torch.device) -> Tensor:
    """Twice the mean token index of each cell of adaptive average pooling: int64 (pooled_length,)."""
    if not (is_symbol(length) or is_symbol(pooled_length)):  # on the host: a copy takes a GPU one launch
        starts, ends = cells_of_axis(length, pooled_length, None)
        return (starts + ends - 1).to(device)
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
    doubled = 2 * torch.arange(length, device=device)[:, None] - doubled_centres(length, pooled_length, device)
    return (doubled - start) // step


@cached_constant
def _resized_rows(
    length: int, pooled_length: int, trained: int, trained_pooled: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rows of the trained table, and weights, by which bilinear resizing sums them (see `PositionBias.table`)."""
    index = _offset_index(trained, trained_pooled, device)
    query = linear_positions(trained, length, device)[:, None]
    key = linear_positions(trained_pooled, pooled_length, device)
    queries, keys = ((each.floor().long(), each.ceil().long()) for each in (query, key))
    rows = torch.stack([index[i, u] for i in queries for u in keys], dim=-1)
    query, key = (query - queries[0]).to(dtype), (key - keys[0]).to(dtype)
    return rows, torch.stack([(1 - query) * (1 - key), (1 - query) * key, query * (1 - key)], dim=-1)


@cached_constant
def _resizing(length: int, trained: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Bilinear resizing of an axis as a matrix, (length, trained)."""
    return linear_weights(linear_positions(trained, length, device), trained).to(dtype)


def pooled_grid_of(grid: Grid, sr_ratio: int, pool_size: Grid | None) -> Grid:
    """Pooled grid for a token grid: `pool_size`, or the token grid divided by `sr_ratio`, at least 1 x 1."""

    def pooled_length(length: int) -> int:
        pooled = length // sr_ratio
        if isinstance(pooled, Tensor):  # traced
            return pooled.clamp(min=1)
        # An exported model takes no images of which nothing would be left.
        return pooled if is_symbol(length) else max(1, pooled)

    return pool_size or tuple(map(pooled_length, grid))
