"""Shifted windows of mmpretrain's Swin Transformer.

mmdeploy's own rewriters for them are not used: after an export they leave the static method `get_attn_mask` as a
plain function, and the model no longer runs in PyTorch.
"""

import torch
import torch.nn.functional as F
from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor, nn

from .sizes import Grid, Length, from_sizes

FORWARD = 'mmpretrain.models.utils.ShiftWindowMSA.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def shift_window_msa__forward(self: nn.Module, query: Tensor, hw_shape: Grid) -> Tensor:
    """(B, H * W, C) to the same shape; the feature map is padded to whole windows."""
    context = FUNCTION_REWRITER.get_context(FORWARD)
    if not self.pad_small_map:
        return context.origin_func(self, query, hw_shape)
    size, shift = self.window_size, self.shift_size
    batch, channels = query.shape[0], self.w_msa.embed_dims
    height, width = hw_shape
    with from_sizes(context.cfg):
        bottom, right = -height % size, -width % size
        grid = height + bottom, width + right
        mask = shift_mask(grid, size, shift, query.dtype) if shift else None

    x = F.pad(query.reshape(batch, height, width, channels), (0, 0, 0, right, 0, bottom))
    if shift:
        x = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
    x = self.w_msa(to_windows(x, batch, grid, size).reshape(-1, size * size, channels), mask=mask)
    x = x.reshape(batch, grid[0] // size, grid[1] // size, size, size, channels).transpose(2, 3)
    x = x.reshape(batch, *grid, channels)
    if shift:
        x = torch.roll(x, shifts=(shift, shift), dims=(1, 2))
    return self.drop(x[:, :height, :width].reshape(batch, height * width, channels))


def to_windows(x: Tensor, batch: Length, grid: Grid, size: int) -> Tensor:
    """(B, H, W, ...) to (B, H / size, W / size, size, size, -1)."""
    return x.reshape(batch, grid[0] // size, size, grid[1] // size, size, -1).transpose(2, 3)


def shift_mask(grid: Grid, size: int, shift: int, dtype: torch.dtype) -> Tensor:
    """-100 between tokens of a window from opposite ends of the feature map, otherwise 0: (windows, N, N)."""
    rows, columns = (
        (position >= length - size).to(dtype) + (position >= length - shift).to(dtype)
        for position, length in ((torch.arange(length), length) for length in grid)
    )
    region = to_windows(3 * rows[:, None] + columns, 1, grid, size).reshape(-1, size * size)
    return -100 * (region[:, None] != region[:, :, None]).to(dtype)
