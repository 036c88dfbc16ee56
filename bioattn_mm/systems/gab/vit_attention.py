"""GAB for plain ViTs: timm's attention, whose position bias is an MLP of the offset, with a Gaussian bias added."""

from collections.abc import Iterable, Sequence
from itertools import repeat

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from ...ops.arguments import without_autocast
from ...ops.constants import cached_constant
from ...ops.relative_bias_attention import bias_of_queries, relative_bias_attention
from ..common.attention_maps import AttentionMap, AttentionMaps, maps_of_product
from ..common.hooks import Layers, stacked_parameters
from ..common.layout import Grid, head_dims_of, split_heads
from ..common.size_cache import SizeCache, SizeCaching
from .gaussian_bias import GaussianBias, gaussians

# timm's MLP of the offset has this width and dropout.
HIDDEN_DIMS, DROPOUT = 128, 0.125


class GaussianRelPosMlp(SizeCaching):
    """timm's position bias, an MLP of the log-spaced offset (timm's mode 'cr'), plus `GaussianBias`; for any grid.

    Args:
        num_heads: Number of attention heads.
        sigma: Initial standard deviation of the Gaussian, in patches.
        amplitude: Initial amplitude of the Gaussian.
        gaussian_per_head: Whether each head has a Gaussian.
    """

    def __init__(self, num_heads: int, sigma: float, amplitude: float = 1.0, gaussian_per_head: bool = False) -> None:
        super().__init__()
        self.mlp = Mlp(2, HIDDEN_DIMS, num_heads, act_layer=nn.ReLU, drop=(DROPOUT, 0.0))
        self.gaussian = GaussianBias(sigma, amplitude, num_heads if gaussian_per_head else None)
        self._tables = SizeCache()

    def table(self, grid: Grid) -> Tensor:
        """Sum of both biases for all offsets on a grid (height, width): (heads, 2 H - 1, 2 W - 1)."""
        return self._tables.get(self, grid, lambda: self._table(grid))

    def _table(self, grid: Grid) -> Tensor:
        like = self.gaussian.sigma  # a quantised layer has no weight
        with without_autocast(like):
            hidden = self.mlp.fc1(log_offsets(*grid, like.dtype, like.device)).relu()
            learned = self.mlp.fc2(F.dropout(hidden, DROPOUT, self.training))
            return learned.permute(2, 0, 1) + self.gaussian.table(grid)


@cached_constant
def log_offsets(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`sign(x) log(1 + |x|)` of all offsets on a grid, vertical and horizontal: (2 H - 1, 2 W - 1, 2)."""
    offsets = (torch.arange(1 - length, length, dtype=torch.float32, device=device) for length in (height, width))
    return torch.stack(torch.meshgrid(*(x.sign() * x.abs().log1p() for x in offsets), indexing='ij'), -1).to(dtype)


class GaussianRelPosAttention(nn.Module):
    """Multi-head attention, of tokens of width `embed_dims`, with the bias of `GaussianRelPosMlp`."""

    def __init__(
        self, embed_dims: int, num_heads: int, sigma: float, amplitude: float = 1.0, gaussian_per_head: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = head_dims_of(embed_dims, num_heads) ** -0.5
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=False)
        self.rel_pos = GaussianRelPosMlp(num_heads, sigma, amplitude, gaussian_per_head)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); `table` is that of the bias, if it is computed already."""
        batch, height, width, channels = x.shape
        qkv = self.qkv(x).reshape(batch, height, width, 3, self.num_heads, channels // self.num_heads)
        table = self.rel_pos.table((height, width)) if table is None else table
        output = relative_bias_attention(*qkv.unbind(3), table, self.scale)  # (B, H, W, heads, d)
        return self.proj(output.flatten(3))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """'Gaussian', of the Gaussian bias alone, 'content', 'position', of the whole bias, and 'attention'."""
        grid = tuple(x.shape[1:3])
        query, key, _ = split_heads(self.qkv(x), 3, self.num_heads)
        content = query[:, :, queries] @ key.mT * self.scale
        gaussian, bias = (
            bias_of_queries(table, grid, queries).to(content.dtype)
            for table in (self.rel_pos.gaussian.table(grid), self.rel_pos.table(grid))
        )
        gaussian = gaussian.softmax(-1)[(None,) * (4 - gaussian.dim())]
        return dict(Gaussian=AttentionMap.of_grid(gaussian, grid), **maps_of_product(content, bias, grid))

    def head_parameters(self) -> dict[str, list[float]]:
        """Those of the Gaussian, see `GaussianBias`."""
        return self.rel_pos.gaussian.head_parameters()


OF_TABLES: Layers = [
    ((), GaussianRelPosAttention, ()),
    (('rel_pos',), GaussianRelPosMlp, ()),
    (('rel_pos', 'mlp'), Mlp, ()),
    (('rel_pos', 'mlp', 'fc1'), nn.Linear, ('weight', 'bias')),
    (('rel_pos', 'mlp', 'fc2'), nn.Linear, ('weight', 'bias')),
    (('rel_pos', 'gaussian'), GaussianBias, ('amplitude', 'sigma')),
]


def tables_of(blocks: Sequence[nn.Module], grid: Grid) -> Iterable[tuple[Tensor, ...]]:
    """What `forward` of the `attn` of each of some blocks takes after the tokens, computed together in training."""
    layers = [block.attn for block in blocks]
    stacked = stacked_parameters(layers, OF_TABLES, *blocks)
    if stacked is None or len({layer.rel_pos.training for layer in layers}) > 1:  # some have dropout
        return repeat(())
    first_weight, first_bias, weight, bias, amplitude, sigma = stacked
    with without_autocast(weight):
        offsets = log_offsets(*grid, weight.dtype, weight.device).flatten(0, 1).expand(len(layers), -1, -1)
        hidden = torch.baddbmm(first_bias[:, None], offsets, first_weight.mT).relu()
        learned = torch.baddbmm(bias[:, None], F.dropout(hidden, DROPOUT, layers[0].rel_pos.training), weight.mT)
        of_offsets = gaussians(amplitude, sigma, grid)  # (layers, heads or 1, 2 H - 1, 2 W - 1)
        return zip((learned.mT.unflatten(2, of_offsets.shape[2:]) + of_offsets).unbind())
