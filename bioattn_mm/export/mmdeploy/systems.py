"""Layers of the systems: what depends on a grid and on parameters alone is a constant in a graph of fixed size."""

from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import Tensor, nn

from ...ops.peripheral_attention import attend
from ...systems.pervit import DistanceEmbedding, PeripheralAttention
from .sizes import not_traced

FROM_GRIDS = (
    'bioattn_mm.systems.transnext.position_bias.PositionBias.table',
    'bioattn_mm.systems.common.blocks.PositionEmbedding.of_grid',
    'bioattn_mm.systems.pervit.DistanceEmbedding.forward',
    'bioattn_mm.systems.pervit.VectorDistance.forward',
    'bioattn_mm.systems.vars.SparseReconstructionAttention._static_columns',
)
PERIPHERAL = 'bioattn_mm.systems.pervit.PeripheralAttention.forward'


def register(name: str) -> None:
    """Register the rewriter of a method, whose arguments are grids (height, width) and what is no tensor."""

    @FUNCTION_REWRITER.register_rewriter(name)
    def constant(self: nn.Module, *arguments: object) -> object:
        context = FUNCTION_REWRITER.get_context(name)
        if is_dynamic_shape(context.cfg):
            return context.origin_func(self, *arguments)
        with not_traced():
            # Traced lengths become integers.
            arguments = (tuple(map(int, value)) if isinstance(value, tuple) else value for value in arguments)
            return context.origin_func(self, *arguments)


for _name in FROM_GRIDS:
    register(_name)


@FUNCTION_REWRITER.register_rewriter(PERIPHERAL)
def peripheral_attention__forward(
    self: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding, distances: Tensor | None = None
) -> Tensor:
    """(B, H, W, C) to (B, H, W, C). In a graph of fixed size, log Phi_p is a constant of heads * N * N numbers."""
    context = FUNCTION_REWRITER.get_context(PERIPHERAL)
    if is_dynamic_shape(context.cfg):
        return context.origin_func(self, x, distance_embedding, distances)
    with not_traced():
        bias = self.position_bias(tuple(map(int, x.shape[1:3])), distance_embedding)
    output = attend(*self.query_key_value(x), bias)
    return self.proj(output.transpose(1, 2).reshape(x.shape))
