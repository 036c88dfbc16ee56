"""ConvGLU in ONNX operators instead of the compiled one."""

from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor

from ..layers import ConvGLU
from ..ops import gated_convolution_reference


@FUNCTION_REWRITER.register_rewriter('bioattn_mm.layers.ConvGLU.forward')
def conv_glu__forward(self: ConvGLU, x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H, W, C)."""
    return self.fc2(gated_convolution_reference(self.fc1(x), self.dwconv.weight, self.dwconv.bias))
