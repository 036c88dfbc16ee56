"""Attention weights of aggregated attention, for analysis (see `systems.common.attention_maps`).

`x` are tokens, (B, H, W, C), and `queries` indices in the row-major order of the grid, int64 (queries,).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...ops import unit_vectors
from ..common.attention_maps import AttentionMap, AttentionMaps
from ..common.layout import Grid
from .position_bias import doubled_centres


class MapsOfAggregation:
    """The maps of `AggregatedAttention`, of which this is a part."""

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries.

        Returns:
            'window', with 0 for keys outside of the image, and 'pooled', which together sum to 1; and 'learnable
            tokens', which are added to those of the window.
        """
        grid = tuple(x.shape[1:3])
        inputs = self.scale.logit_factors(self._projections(x))
        row, column = queries // grid[1], queries % grid[1]
        rows, columns, inside = tokens_of_windows(row, column, grid, self.window_size)
        window = (self.window_size, self.window_size)

        query = inputs.query[:, row, column]
        key = inputs.key[:, rows.clamp(0, grid[0] - 1)[:, :, None], columns.clamp(0, grid[1] - 1)[:, None]]
        window_bias = inputs.window_bias.unflatten(-1, window)[:, None]
        window_logits = torch.einsum('bqnd,bqrcnd->bnqrc', query, key) + window_bias
        window_logits = window_logits.masked_fill(~inside, float('-inf')).flatten(3)
        pooled_bias = inputs.pooled_bias[:, inputs.pooled_bias_rows[row], column[:, None]]
        pooled_logits = (torch.einsum('bqnd,brcnd->bnqrc', query, inputs.pooled_key) + pooled_bias).flatten(3)
        weights = torch.cat((window_logits, pooled_logits), dim=-1).softmax(-1)
        window_weights, pooled_weights = weights.split([window_logits.shape[-1], pooled_logits.shape[-1]], dim=-1)

        pooled_grid = self.pooled_grid(grid)
        centres = centres_of_cells(grid, pooled_grid, x)
        token_weights = inputs.token_weights[:, row, column].transpose(1, 2) * inside.flatten(1)
        return {
            'window': AttentionMap(window_weights.unflatten(-1, window), rows, columns),
            'pooled': AttentionMap(pooled_weights.unflatten(-1, pooled_grid), *centres),
            'learnable tokens': AttentionMap(token_weights.unflatten(-1, window), rows, columns),
        }

    def foveal_map(self, x: Tensor, queries: Tensor) -> AttentionMap:
        """What some queries would attend to by content alone in the whole feature map (TransNeXt, figure 7).

        It is a softmax over all tokens, none of them pooled, with the learned temperature and length scaling, and
        without query embedding and position bias. No output is made of these weights.
        """
        return AttentionMap.of_grid(self._content_weights(x, queries, x), tuple(x.shape[1:3]))

    def peripheral_map(self, x: Tensor, queries: Tensor) -> AttentionMap:
        """As `foveal_map`, with the pooled tokens as keys."""
        grid = tuple(x.shape[1:3])
        pooled_grid = self.pooled_grid(grid)
        weights = self._content_weights(x, queries, self.pooled_tokens(x))
        return AttentionMap(weights.unflatten(-1, pooled_grid), *centres_of_cells(grid, pooled_grid, x))

    def _content_weights(self, x: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Softmax by content alone, (B, heads, queries, keys)."""
        keys = keys.flatten(1, 2)
        query = self.q(x.flatten(1, 2)[:, queries]).unflatten(-1, (self.num_heads, -1))
        key = unit_vectors(self.kv(keys).unflatten(-1, (2, self.num_heads, -1))[:, :, 0])
        log_length = math.log(keys.shape[1])
        # A query of zeros gives the part of the query embedding.
        query = self.scale(query, log_length) - self.scale(torch.zeros_like(query), log_length)
        return torch.einsum('bqnd,bknd->bnqk', query, key).softmax(-1)


def tokens_of_windows(row: Tensor, column: Tensor, grid: Grid, window_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where the windows of some queries are, by their rows and columns.

    Returns:
        Rows and columns of the window's tokens, both int64 (queries, k), which may lie outside of the grid, and
        whether they lie in it, bool (queries, k, k).
    """
    reach = torch.arange(window_size, device=row.device) - window_size // 2
    rows, columns = row[:, None] + reach, column[:, None] + reach
    inside = ((rows >= 0) & (rows < grid[0]))[:, :, None] & ((columns >= 0) & (columns < grid[1]))[:, None]
    return rows, columns, inside


def centres_of_cells(grid: Grid, pooled_grid: Grid, x: Tensor) -> Iterator[Tensor]:
    """Rows and columns of the pooled tokens, float64 (1, Ph) and (1, Pw), on the device of `x`."""
    return (doubled_centres(*lengths, x.device)[None].double() / 2 for lengths in zip(grid, pooled_grid))
