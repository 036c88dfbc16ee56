"""Padding to whole patches, computed from the size of the input when the graph runs."""

import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor

FORWARD = 'mmcv.cnn.bricks.transformer.AdaptivePadding.forward'


@FUNCTION_REWRITER.register_rewriter(FORWARD)
def adaptive_padding__forward(self: AdaptivePadding, x: Tensor) -> Tensor:
    """mmcv's padding before a convolution; the original decides in Python, at export, whether to pad."""
    if self.padding != 'corner' or self.kernel_size != self.stride or self.dilation != (1, 1):
        return FUNCTION_REWRITER.get_context(FORWARD).origin_func(self, x)
    bottom, right = (-length % stride for length, stride in zip(x.shape[-2:], self.stride))
    return F.pad(x, (0, right, 0, bottom))
