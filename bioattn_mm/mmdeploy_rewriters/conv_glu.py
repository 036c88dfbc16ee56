"""ConvGLU in ONNX operators instead of the compiled one."""

from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor

from ..layers import ConvGLU


@FUNCTION_REWRITER.register_rewriter('bioattn_mm.layers.ConvGLU.forward')
def conv_glu__forward(self: ConvGLU, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C)."""
    return self.as_convolutions(x)
