"""torch.onnx.export as mmdeploy's rewriters need it, and operators that it does not have or mmdeploy replaces."""

import torch
from mmdeploy.core import FUNCTION_REWRITER, SYMBOLIC_REWRITER
from mmdeploy.utils import IR
from torch import Tensor
from torch.onnx import symbolic_opset16

EXPORT = 'torch.onnx.export'


@FUNCTION_REWRITER.register_rewriter(EXPORT)
def export__torchscript(*args, **kwargs) -> None:
    """Trace with TorchScript: PyTorch's default exporter since 2.9 sees nothing of what mmdeploy rewrites."""
    FUNCTION_REWRITER.get_context(EXPORT).origin_func(*args, dynamo=False, **kwargs)


@SYMBOLIC_REWRITER.register_symbolic('grid_sampler', is_pytorch=True, ir=IR.ONNX)
def grid_sampler__standard(g, *args):
    """ONNX's GridSample, which opset 16 has; mmdeploy writes an operator of its own library."""
    return symbolic_opset16.grid_sampler(g, *args)


@FUNCTION_REWRITER.register_rewriter('torch.hypot')
def hypot__square_root(x: Tensor, y: Tensor) -> Tensor:
    """ONNX has no hypot."""
    return torch.sqrt(x * x + y * y)
