"""Functions of PyTorch: its exporter as mmdeploy needs it, and single operators in standard ONNX."""

from collections.abc import Sequence

import torch
from mmdeploy.core import FUNCTION_REWRITER, SYMBOLIC_REWRITER
from mmdeploy.utils import IR
from torch import Tensor
from torch.nn.modules.utils import _pair
from torch.onnx import symbolic_opset16

from ...ops.portable import portable_formulas
from ..program import averaging_matrix
from .sizes import Grid, from_sizes

EXPORT, TRACE = 'torch.onnx.export', 'torch.jit.trace'
POOLING = 'torch.nn.functional.adaptive_avg_pool2d'
ATTENTION = 'torch.nn.functional.scaled_dot_product_attention'


@FUNCTION_REWRITER.register_rewriter(EXPORT)
def export__torchscript(*args, **kwargs) -> None:
    """Trace with TorchScript: PyTorch's default exporter since 2.9 ignores mmdeploy's rewriters.

    Operators and layers of this package compute with what ONNX has.
    """
    with portable_formulas():
        FUNCTION_REWRITER.get_context(EXPORT).origin_func(*args, dynamo=False, **kwargs)


@FUNCTION_REWRITER.register_rewriter(TRACE, ir=IR.TORCHSCRIPT)
def trace__portable(*args, **kwargs) -> torch.jit.ScriptModule:
    """The same for a file of TorchScript, which has no compiled operators either."""
    with portable_formulas():
        return FUNCTION_REWRITER.get_context(TRACE).origin_func(*args, **kwargs)


@SYMBOLIC_REWRITER.register_symbolic('grid_sampler', is_pytorch=True, ir=IR.ONNX)
def grid_sampler__standard(g, *args):
    """ONNX's GridSample of opset 16; mmdeploy's rewriter writes an operator of its own library instead."""
    return symbolic_opset16.grid_sampler(g, *args)


@FUNCTION_REWRITER.register_rewriter('torch.Tensor.unflatten')
def unflatten__reshape(self: Tensor, dim: int, sizes: Sequence[int | Tensor]) -> Tensor:
    """Reshape; the exporter would write the traced shape of an unflattened tensor as a constant into the graph."""
    dim = dim % self.dim()
    return self.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])


@FUNCTION_REWRITER.register_rewriter(POOLING, ir=IR.ONNX)
def adaptive_avg_pool2d__exact(input: Tensor, output_size: int | Grid) -> Tensor:
    """(..., H, W) to (..., H', W').

    mmdeploy's own rewriter gives all cells the same size, rounded down and fixed at export.
    """
    with from_sizes(FUNCTION_REWRITER.get_context(POOLING).cfg):
        grids = zip(input.shape[-2:], _pair(output_size))
        rows, columns = (averaging_matrix(*lengths, input) for lengths in grids)
    return rows @ input @ columns.T


@FUNCTION_REWRITER.register_rewriter(ATTENTION, ir=IR.ONNX)
@FUNCTION_REWRITER.register_rewriter(ATTENTION, ir=IR.TORCHSCRIPT)
def scaled_dot_product_attention__formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale q k^T + mask) v; mmdeploy's own rewriter divides by `scale` instead of multiplying."""
    if is_causal or enable_gqa:
        raise NotImplementedError('export of scaled_dot_product_attention with is_causal or enable_gqa')
    scale = int(query.shape[-1]) ** -0.5 if scale is None else scale
    logits = (query * scale) @ key.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, float('-inf'))
    elif attn_mask is not None:
        logits = logits + attn_mask
    return logits.softmax(-1) @ value
