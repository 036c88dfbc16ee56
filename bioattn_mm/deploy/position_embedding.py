"""Learned absolute position embedding, and the antialiased bicubic resizing that takes it to other grids."""

import torch
from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import Tensor

from ..layers import PositionEmbedding
from .sizes import Grid, Length, integers, not_traced

FORWARD = 'bioattn_mm.layers.PositionEmbedding.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def position_embedding__forward(self: PositionEmbedding, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C)."""
    context = FUNCTION_REWRITER.get_context(FORWARD)
    if is_dynamic_shape(context.cfg):
        return x + resize(self.weight.reshape(*self.grid, -1), x.shape[1:3])
    with not_traced():
        resized = context.origin_func(self, x.new_zeros(1, *integers(x.shape[1:])))
    return x + resized


def resize(x: Tensor, grid: Grid) -> Tensor:
    """Bicubic resizing with antialiasing, as `F.interpolate` does it, in two matrix products.

    Args:
        x: (h, w, C), of a constant shape.
        grid: (H, W).

    Returns:
        (H, W, C).
    """
    height, width, channels = integers(x.shape)
    rows, columns = (resizing_matrix(*lengths, x.dtype) for lengths in zip((height, width), grid))
    x = (rows @ x.reshape(height, width * channels)).reshape(-1, width, channels)
    return columns @ x


def resizing_matrix(length: int, target: Length, dtype: torch.dtype) -> Tensor:
    """Weights of the positions of an axis in each position of another length: (target, length)."""
    step = length / torch.as_tensor(target, dtype=dtype)
    centre = (torch.arange(target, dtype=dtype)[:, None] + 0.5) * step
    # Coarser positions average over what they cover; finer ones interpolate.
    distance = (torch.arange(length, dtype=dtype) + 0.5 - centre).abs() / step.clamp(min=1)
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    return weights / weights.sum(-1, keepdim=True)
