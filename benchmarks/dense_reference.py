"""TransNeXt as its formulas are written: unfolded windows, and position bias from a sort of all pairs' coordinates.

The backbone is measured against it. Its parameters and features are the same.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.layers import LogCPB
from bioattn_mm.ops import CosineAttentionInputs, gated_convolution

Grid = tuple[int, int]


@contextmanager
def dense_formulas() -> Iterator[None]:
    """Context in which TransNeXt runs by the formulas of this file."""
    with (
        mock.patch('bioattn_mm.layers.aggregated_attention.cosine_attention', unfolded_attention),
        mock.patch('bioattn_mm.layers.conv_glu.gated_convolution', partial(gated_convolution, backend='reference')),
        mock.patch.object(LogCPB, 'table', all_pairs_table),
        mock.patch.object(LogCPB, 'forward', all_pairs_bias),
        # On a GPU the blocks of a stage would be given the tables of the MLP.
        mock.patch('bioattn_mm.models.backbones.blocks.computed_together', lambda layers, grid: [()] * len(layers)),
    ):
        yield


def unfolded_attention(*tensors: Tensor, **by_name: Tensor) -> Tensor:
    """Aggregated attention; the k * k window keys and values of every query are copied side by side."""
    inputs = CosineAttentionInputs(*tensors, **by_name).normalised()
    batch, height, width, heads, channels = inputs.query.shape
    window = round(inputs.window_bias.shape[1] ** 0.5)

    def unfold(x: Tensor) -> Tensor:  # (B, heads, N, d, k * k)
        x = F.unfold(x.flatten(3).permute(0, 3, 1, 2), window, padding=window // 2)
        return x.view(batch, heads, channels, window**2, -1).permute(0, 1, 4, 2, 3)

    def tokens(x: Tensor) -> Tensor:  # (B, heads, N, d)
        return x.flatten(1, 2).transpose(1, 2)

    query = tokens(inputs.query)
    inside = F.unfold(query.new_ones(1, 1, height, width), window, padding=window // 2)[0].T  # (N, k * k)
    window_logits = (query.unsqueeze(-2) @ unfold(inputs.key)).squeeze(-2) + inputs.window_bias[:, None]
    window_logits = window_logits.masked_fill(inside == 0, float('-inf'))
    bias = inputs.pooled_bias[:, inputs.pooled_bias_rows].transpose(2, 3).flatten(3).flatten(1, 2)  # (heads, N, P)
    pooled_logits = query @ tokens(inputs.pooled_key).transpose(-2, -1) + bias
    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights, pooled_weights = weights.split([window**2, pooled_logits.shape[-1]], dim=-1)
    window_weights = window_weights + tokens(inputs.token_weights)
    output = (window_weights.unsqueeze(-2) @ unfold(inputs.value).transpose(-2, -1)).squeeze(-2)
    output = output + pooled_weights @ tokens(inputs.pooled_value)
    return output.transpose(1, 2).unflatten(1, (height, width))


_unique_coordinates: dict[tuple, tuple[Tensor, Tensor]] = {}


def all_pairs_bias(layer: LogCPB, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor]:
    """Log-CPB that finds the distinct coordinates by sorting those of all pairs.

    The blocks of a stage share the sort. In 'interpolate' mode all calls share it, as in a network that prepares the
    coordinates of its training size once.
    """
    resize = layer.bias_mode == 'interpolate'
    source, source_pooled = (layer.train_grid, layer.train_pooled_grid) if resize else (grid, pooled_grid)
    size = (source, source_pooled, layer.pretrain_grid)
    if size not in _unique_coordinates:
        _unique_coordinates[size] = unique_coordinates(*size)
    table, index = _unique_coordinates[size]
    bias = layer.fc2(F.relu(layer.fc1(table))).T[:, index]
    bias = bias.view(-1, math.prod(source), *source_pooled)
    bias = F.interpolate(bias, pooled_grid, mode='bilinear').flatten(2) if resize else bias.flatten(2)
    if resize:
        bias = F.interpolate(bias.transpose(1, 2).unflatten(2, source), grid, mode='bilinear')
        bias = bias.flatten(2).transpose(1, 2)
    # (heads, N, P) to (heads, H * Ph, W, Pw), as the operator takes it.
    bias = bias.unflatten(1, grid).unflatten(3, pooled_grid).transpose(2, 3).flatten(1, 2)
    return bias, torch.arange(grid[0] * pooled_grid[0]).view(grid[0], pooled_grid[0])


def all_pairs_table(layer: LogCPB, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """The same as a table with a column for each pair of columns, as `LogCPB.table`."""
    bias, rows = all_pairs_bias(layer, grid, pooled_grid)
    return bias.flatten(2), rows, torch.arange(grid[1] * pooled_grid[1]).view(grid[1], pooled_grid[1])


def forget_coordinates() -> None:
    """Empty the cache of sorted coordinates, so that every size is a new one again."""
    _unique_coordinates.clear()


def unique_coordinates(grid: Grid, pooled_grid: Grid, pretrain_grid: Grid) -> tuple[Tensor, Tensor]:
    """Distinct log-spaced coordinates (D, 2) of all pairs, and the index of each pair among them (N * P,)."""
    coordinates = []
    for axis in (0, 1):
        query = torch.arange(grid[axis], dtype=torch.float32)
        pooled = F.adaptive_avg_pool1d(query[None], pooled_grid[axis])[0]
        coordinates.append((query[:, None] - pooled) / (pretrain_grid[axis] - 1) * 8)
    shape = (*grid, *pooled_grid)
    vertical = coordinates[0][:, None, :, None].expand(shape).flatten()
    horizontal = coordinates[1][None, :, None, :].expand(shape).flatten()
    pairs = torch.stack([vertical, horizontal], dim=-1)
    table, index = torch.unique(pairs, return_inverse=True, dim=0)
    return table.sign() * torch.log2(table.abs() + 1) / math.log2(8), index
