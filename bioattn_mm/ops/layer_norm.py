"""Layer normalisation of tokens, for bfloat16 on the CPU by a kernel of its own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import choose_backend


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """`F.layer_norm` over the last axis.

    PyTorch's kernel for bfloat16 on the CPU takes two to five times as long as one for float32, most with widths that
    are no multiple of 32, such as TransNeXt's 72. The compiled one here takes no longer; sums are float32 in both.

    Args:
        x: (..., C).
        weight: (C,).
        bias: (C,).
        eps: Added to the variance.

    Returns:
        The shape and dtype of `x`.
    """
    takes = x.device.type == 'cpu' and x.dtype == torch.bfloat16 and weight.dtype == bias.dtype == torch.float32
    if takes and choose_backend(x.device, None) == 'cpu':
        return torch.ops.bioattn_mm.layer_norm(x, weight, bias, eps)
    return F.layer_norm(x, weight.shape, weight, bias, eps)
