"""PerViT's peripheral attention: in a graph of fixed size its position-based part is a constant."""

from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import Tensor

from ..errors import InputError
from ..layers import DistanceEmbedding, PeripheralAttention, PeripheralPosition
from ..ops.peripheral_attention import attend
from .sizes import integers, not_traced

FORWARD = 'bioattn_mm.layers.PeripheralAttention.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def peripheral_attention__forward(
    self: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding
) -> Tensor:
    """(B, H, W, C) to (B, H, W, C). In a graph of fixed size, log Phi_p is a constant of heads * N * N numbers."""
    context = FUNCTION_REWRITER.get_context(FORWARD)
    if is_dynamic_shape(context.cfg):
        for part, paper in ((self.position, PeripheralPosition), (distance_embedding, DistanceEmbedding)):
            if not isinstance(part, paper):
                raise InputError(
                    f'{type(part).__name__}, which an ablation has in place of {paper.__name__}, can be exported for '
                    'images of a fixed size only'
                )
        return context.origin_func(self, x, distance_embedding)
    with not_traced():
        bias = self.position_bias(integers(x.shape[1:3]), distance_embedding)
    output = attend(*self._query_key_value(x), bias)
    return self.proj(output.transpose(1, 2).reshape(x.shape))
