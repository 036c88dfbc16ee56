"""Adaptive average pooling as two matrix products, exact at every size."""

from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import IR
from torch import Tensor
from torch.nn.modules.utils import _pair

from ..ops.portable import averaging_matrix
from .sizes import Grid, from_sizes

NAME = 'torch.nn.functional.adaptive_avg_pool2d'


@FUNCTION_REWRITER.register_rewriter(NAME, ir=IR.ONNX)
def adaptive_avg_pool2d__exact(input: Tensor, output_size: int | Grid) -> Tensor:
    """(..., H, W) to (..., H', W').

    mmdeploy's own rewriter gives all cells the same size, rounded down and fixed at export.
    """
    with from_sizes(FUNCTION_REWRITER.get_context(NAME).cfg):
        grids = zip(input.shape[-2:], _pair(output_size))
        rows, columns = (averaging_matrix(*lengths, input) for lengths in grids)
    return rows @ input @ columns.T
