"""Layer normalisation of tokens, for bfloat16 on the CPU by a kernel of its own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import choose_backend

UNSUPPORTED = 'layer_norm is compiled for the CPU, for bfloat16 with float32 parameters'


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, backend: str | None = None) -> Tensor:
    """`F.layer_norm` over the last axis.

    PyTorch's kernel for bfloat16 on the CPU takes two to five times as long as one for float32, most with widths that
    are no multiple of 32, such as TransNeXt's 72. The compiled one here takes no longer; sums are float32 in both.

    Args:
        x: (..., C).
        weight: (C,).
        bias: (C,).
        eps: Added to the variance.
        backend: 'cpu' (compiled; bfloat16 `x` with float32 parameters) or 'reference' (PyTorch's kernel). By default
            the environment variable BIOATTN_MM_BACKEND, or else the fastest that supports the arguments.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ValueError: The backend does not fit the arguments.
    """
    takes = x.device.type == 'cpu' and x.dtype == torch.bfloat16 and weight.dtype == bias.dtype == torch.float32
    if not takes and backend is None:
        backend = 'reference'
    if choose_backend(x.device, backend, None if takes else UNSUPPORTED) == 'cpu':
        return torch.ops.bioattn_mm.layer_norm(x, weight, bias, eps)
    return F.layer_norm(x, weight.shape, weight, bias, eps)
