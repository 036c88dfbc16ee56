"""Learned absolute position embedding; a graph of dynamic size resizes it."""

from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import Tensor

from ..layers import PositionEmbedding
from ..layers.resizing import resize_bicubic
from .sizes import integers, not_traced

FORWARD = 'bioattn_mm.layers.PositionEmbedding.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def position_embedding__forward(self: PositionEmbedding, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C)."""
    context = FUNCTION_REWRITER.get_context(FORWARD)
    if is_dynamic_shape(context.cfg):
        return x + resize_bicubic(self.weight.reshape(*self.grid, -1), x.shape[1:3])
    with not_traced():
        resized = context.origin_func(self, x.new_zeros(1, *integers(x.shape[1:])))
    return x + resized
