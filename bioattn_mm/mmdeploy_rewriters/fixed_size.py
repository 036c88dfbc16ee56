"""What depends on a grid and on parameters alone: a constant in a graph of fixed size, otherwise traced as it is."""

from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import is_dynamic_shape
from torch import nn

from .sizes import integers, not_traced

METHODS = (
    'bioattn_mm.layers.log_cpb.PositionBias.table',
    'bioattn_mm.layers.log_cpb.PositionBias.of_offsets',
    'bioattn_mm.layers.PositionEmbedding.of_grid',
    'bioattn_mm.layers.SparseReconstructionAttention._static_columns',
)


def register(name: str) -> None:
    """Register the rewriter of a method, whose arguments are grids (height, width) and what is no tensor."""

    @FUNCTION_REWRITER.register_rewriter(name)
    def constant(self: nn.Module, *arguments: object) -> object:
        context = FUNCTION_REWRITER.get_context(name)
        if is_dynamic_shape(context.cfg):
            return context.origin_func(self, *arguments)
        with not_traced():
            arguments = (integers(value) if isinstance(value, tuple) else value for value in arguments)
            return context.origin_func(self, *arguments)


for _name in METHODS:
    register(_name)
