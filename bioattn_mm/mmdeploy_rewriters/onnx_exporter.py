"""torch.onnx.export with the exporter that mmdeploy needs, and single operators in standard ONNX."""

from collections.abc import Sequence

import torch
from mmdeploy.core import FUNCTION_REWRITER, SYMBOLIC_REWRITER
from mmdeploy.utils import IR
from torch import Tensor
from torch.onnx import TensorProtoDataType, symbolic_opset16

from ..ops.portable import portable_formulas

EXPORT, TRACE = 'torch.onnx.export', 'torch.jit.trace'


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


@SYMBOLIC_REWRITER.register_symbolic('mmcv.ops.roi_align.__self__', backend='onnxruntime')
def roi_align__standard(g, input, rois, output_size, spatial_scale, sampling_ratio, pool_mode, aligned):
    """ONNX's RoiAlign, which equals mmcv's from opset 16; mmdeploy's calls a function that PyTorch has removed."""

    def columns(*indices):
        return g.op('Gather', rois, g.op('Constant', value_t=torch.tensor(indices)), axis_i=1)

    image = g.op('Squeeze', columns(0), g.op('Constant', value_t=torch.tensor([1])))
    return g.op(
        'RoiAlign',
        input,
        columns(1, 2, 3, 4),
        g.op('Cast', image, to_i=TensorProtoDataType.INT64),
        output_height_i=output_size[0],
        output_width_i=output_size[1],
        spatial_scale_f=spatial_scale,
        sampling_ratio_i=sampling_ratio,
        mode_s=pool_mode,
        coordinate_transformation_mode_s='half_pixel' if aligned else 'output_half_pixel',
    )


@FUNCTION_REWRITER.register_rewriter('torch.Tensor.unflatten')
def unflatten__reshape(self: Tensor, dim: int, sizes: Sequence[int | Tensor]) -> Tensor:
    """Reshape; the exporter would write the traced shape of an unflattened tensor as a constant into the graph."""
    dim = dim % self.dim()
    return self.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])
