"""Linear layer, for training in bfloat16 on the CPU an operator of its own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import autocast_dtype
from .backends import choose_backend

UNSUPPORTED = 'linear is compiled for the CPU, for bfloat16 with float32 parameters'


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, backend: str | None = None) -> Tensor:
    """`F.linear`: `x @ weight.T + bias`.

    In training with autocast to bfloat16, autocast and autograd make a dozen small operations of each layer:
    parameters are converted, and their gradients, which are in bfloat16, are converted back. In the compiled operator
    the gradient of the weight is a product with sums in float32 that stay so, and the gradient of the bias is found
    on the way.

    Args:
        x: (..., C).
        weight: (M, C).
        bias: (M,).
        backend: 'cpu' (compiled; bfloat16 `x`, also by autocast, with float32 parameters) or 'reference' (PyTorch's).
            By default the environment variable BIOATTN_MM_BACKEND, or else 'cpu' where it takes the arguments and the
            weight needs a gradient.

    Returns:
        (..., M) in the dtype of `x`, or of autocast.

    Raises:
        ValueError: The backend does not fit the arguments.
    """
    takes = (
        x.device.type == 'cpu'
        and autocast_dtype(x) == torch.bfloat16
        and weight.dtype == torch.float32
        and (bias is None or bias.dtype == torch.float32)
    )
    if backend is None and not (takes and weight.requires_grad and torch.is_grad_enabled()):
        backend = 'reference'
    if choose_backend(x.device, backend, None if takes else UNSUPPORTED) == 'cpu':
        return torch.ops.bioattn_mm.linear(x.to(torch.bfloat16), weight, bias)
    return F.linear(x, weight, bias)
