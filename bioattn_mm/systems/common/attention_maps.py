"""Attention weights of chosen queries.

Each attention layer has a method `attention_maps(..., queries)` beside its `forward`, with the same inputs, that
returns named weights. `queries` are indices of tokens in the row-major order of the grid, int64 (queries,).
Training and inference pay nothing for it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .layout import Grid


@dataclass
class AttentionMap:
    """Attention weights of some queries for keys on a grid of R rows and C columns.

    Attributes:
        weights: (B, heads, queries, R, C); B or heads is 1 if all images or heads have the same weights.
        rows: Row of the keys in units of the layer's tokens, (queries, R), or (1, R) if all queries have the same
            keys. Pooled keys lie between tokens; keys of a window may lie outside the grid.
        columns: Columns of the keys in the same way, (queries or 1, C).
    """

    weights: Tensor
    rows: Tensor
    columns: Tensor

    @classmethod
    def of_grid(cls, weights: Tensor, grid: Grid) -> 'AttentionMap':
        """Weights for all tokens of a grid: (B, heads, queries, H * W)."""
        rows, columns = (torch.arange(length, device=weights.device)[None] for length in grid)
        return cls(weights.unflatten(-1, grid), rows, columns)

    def distances(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Euclidean distances in tokens between the queries at (rows, columns) and their keys: (queries, R, C)."""
        return torch.hypot(
            (self.rows - rows[:, None]).float()[:, :, None], (self.columns - columns[:, None]).float()[:, None]
        )


# Maps by name: first the parts that the attention is composed of, last the attention itself. The exception is
# aggregated attention, see `whole_attention`.
AttentionMaps = dict[str, AttentionMap]


def whole_attention(maps: AttentionMaps) -> list[AttentionMap]:
    """The maps of a layer's attention itself: the last one, or the window and the pooled tokens of TransNeXt."""
    return [maps['window'], maps['pooled']] if 'pooled' in maps else [list(maps.values())[-1]]


def maps_of_product(content: Tensor, position: Tensor, grid: Grid) -> AttentionMaps:
    """Softmax of logits of content, (B, heads, queries, keys), of position, (heads, queries, keys), and of their sum.

    The last, 'attention', is the product of 'content' and 'position', divided by its sum over the keys.
    """
    logits = dict(content=content, position=position[None], attention=content + position)
    return {name: AttentionMap.of_grid(each.softmax(-1), grid) for name, each in logits.items()}


@dataclass
class Recording:
    """What went into an attention layer of a backbone: the arguments of its forward, and the grid of its tokens."""

    name: str
    layer: nn.Module
    inputs: tuple
    keywords: dict
    grid: Grid
    backbone: nn.Module

    @property
    def tokens(self) -> Tensor:
        """The first tensor among the inputs."""
        return next(value for value in (*self.inputs, *self.keywords.values()) if isinstance(value, Tensor))

    @torch.no_grad()
    def maps(self, queries: Tensor) -> AttentionMaps:
        """The layer's weights for some of its tokens, int64 (queries,), without gradients."""
        return self.backbone.attention_maps(self, queries)

    def head_parameters(self) -> dict[str, list[float]]:
        """Learned numbers that describe the layer's heads, by name.

        Each list has a value for each head, or one that all heads share.
        """
        return self.layer.head_parameters() if hasattr(self.layer, 'head_parameters') else {}
