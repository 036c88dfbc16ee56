"""GAB for Swin: mmpretrain's window attention with a Gaussian bias. Importing mmpretrain takes seconds."""

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import PatchEmbed, PatchMerging
from mmpretrain.models.utils import ShiftWindowMSA, WindowMSA
from timm.layers import register_notrace_module
from torch import Tensor

from ..ops.relative_bias import bias_of_queries
from .attention_maps import AttentionMap, AttentionMaps, maps_of_product
from .gaussian_bias import GaussianBias
from .grid import Grid
from .windows import Windows

# torch.fx does not look into what follows shapes; as timm marks its own modules.
for _module in (PatchEmbed, PatchMerging, ShiftWindowMSA):
    register_notrace_module(_module)


class GaussianWindowMSA(WindowMSA):
    """mmpretrain's window attention, its table of relative position biases plus `GaussianBias`.

    Args:
        sigma: Initial standard deviation of the Gaussian, in tokens.
        amplitude: Initial amplitude of the Gaussian.
        **kwargs: Passed to mmpretrain's `WindowMSA`.
    """

    def __init__(self, *, sigma: float, amplitude: float = 1.0, **kwargs) -> None:
        super().__init__(**kwargs)
        self.gaussian = GaussianBias(sigma, amplitude)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B * windows, N, C) to the same; `mask`, (windows, N, N), separates the parts of shifted windows."""
        # mmpretrain adds the mask to the logits of every head, so the mask can include the Gaussian.
        bias = self.gaussian(self.window_size).to(x.dtype)[None]
        return super().forward(x, bias if mask is None else mask.to(x.dtype) + bias)

    def table(self) -> Tensor:
        """Sum of both biases for all offsets in the window: (heads, 2 H - 1, 2 W - 1)."""
        height, width = self.window_size
        learned = self.relative_position_bias_table.T.unflatten(1, (2 * height - 1, 2 * width - 1))
        return learned + self.gaussian.table(self.window_size)

    def query_maps(self, tokens: Tensor, places: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Attention weights of some queries, for analysis.

        Args:
            tokens: All tokens of each query's window, (B, queries, N, C).
            places: Indices of the queries in their windows, int64 (queries,).
            mask: Added to the logits, (queries, N).

        Returns:
            (B or 1, heads or 1, queries, N) by name; the names are those of `GaussianRelPosAttention`.
        """
        qkv = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1))
        query, key = qkv[:, range(len(places)), places, 0], qkv[:, :, :, 1]  # (B, queries, (N,) heads, d)
        content = torch.einsum('bqhd,bqnhd->bhqn', query * self.scale, key)
        gaussian, bias = (
            bias_of_queries(table, self.window_size, places).to(content.dtype)
            for table in (self.gaussian.table(self.window_size), self.table())
        )
        # Masked keys have weight 0 in every map; that the sum of content and bias masks them twice changes nothing.
        return dict(
            Gaussian=(gaussian + mask).softmax(-1)[None, None], **maps_of_product(content + mask, bias + mask)
        )


class SmallMapShiftWindowMSA(ShiftWindowMSA):
    """mmpretrain's attention in shifted windows, which refuses a map that is smaller than a window, for any size.

    Such a map is padded to a window, whatever `pad_small_map` says, which decides on a map of one window alone.
    """

    def forward(self, query: Tensor, hw_shape: Grid) -> Tensor:
        """(B, H * W, C) to the same shape."""
        if self.pad_small_map or min(hw_shape) >= self.window_size:
            return super().forward(query, hw_shape)
        self.pad_small_map = True
        try:
            return super().forward(query, hw_shape)
        finally:
            self.pad_small_map = False


def shifted_window_maps(layer: ShiftWindowMSA, x: Tensor, grid: Grid, queries: Tensor) -> AttentionMaps:
    """Attention weights of some queries for the tokens of their windows, for analysis.

    Args:
        layer: mmpretrain's layer around a `GaussianWindowMSA`.
        x: Its input, (B, H * W, C).
        grid: (H, W).
        queries: Indices of the queries in the row-major order of the grid, int64 (queries,).

    Returns:
        Maps by the names of `GaussianWindowMSA.query_maps`; a window may reach into the padding, beyond the grid.
    """
    size, shift = layer.window_size, layer.shift_size
    if min(grid) == size and not layer.pad_small_map:
        shift = 0
    windows = Windows(grid, (size, size), (shift, shift))
    padded = windows.padded
    tokens = x.unflatten(1, grid)
    tokens = F.pad(tokens, (0, 0, 0, padded[1] - grid[1], 0, padded[0] - grid[0]))
    number, places, rows, columns = windows.locate(queries)
    of_window = tokens[:, rows[:, :, None], columns[:, None]].flatten(2, 3)  # (B, queries, size * size, C)
    mask = tokens.new_zeros(len(queries), size * size)
    if shift > 0:
        mask = layer.get_attn_mask(padded, size, shift, tokens.device)[number, places].to(tokens.dtype)
    maps = layer.w_msa.query_maps(of_window, places, mask)
    return {name: AttentionMap(w.unflatten(-1, (size, size)), rows, columns) for name, w in maps.items()}
