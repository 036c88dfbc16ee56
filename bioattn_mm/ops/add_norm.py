"""What lies between two branches of a pre-norm transformer: residual, stochastic depth, and the next LayerNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_dtype, check_fits, without_autocast
from .backends import available_backends, choose_backend
from .registration import differentiable
from .whole_layers import launches_take_time

# The most channels of the CUDA kernels: of their sums over the tokens, shared memory has to hold those of a warp.
MAX_CHANNELS = 4096


def add_norm(
    x: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    factor: Tensor | None = None,
    branch_bias: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`sum = x + factor * (branch + branch_bias)`, and its LayerNorm.

    Autocast changes nothing. The CUDA kernels compute in float32, and round the two results alone.

    Args:
        x: Tokens, (B, H, W, C), float16, bfloat16, float32 or float64.
        branch: What is added, (B, H, W, C), in the dtype of `x` as all others but `factor`.
        weight: Weight of the norm, (C,).
        bias: Bias of the norm, (C,).
        eps: What the norm adds to the variance.
        factor: Factor of each image's branch, (B,), float32, for float64 `x` float64: 0 where stochastic depth drops
            it. It has no gradient. None stands for 1.
        branch_bias: (C,), the bias of the linear layer that gave `branch`, whose gradient the kernels sum, too.
        backend: 'cuda' (one launch, and two backward; C even and at most 4096, no float64) or 'reference'. By default
            the environment variable BIOATTN_MM_BACKEND, or else the fastest that supports the arguments.

    Returns:
        The sum and the normalised sum, (B, H, W, C) in the dtype of `x`.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    if x.dim() != 4:
        raise ValueError(f'x must be (B, H, W, C), got shape {tuple(x.shape)}')
    check_dtype('x', x)
    check_fits('branch', branch, tuple(x.shape), 'x', x, x.dtype)
    for name, parameter in dict(weight=weight, bias=bias, branch_bias=branch_bias).items():
        if parameter is not None:
            check_fits(name, parameter, (x.shape[3],), 'x', x, x.dtype)
    if factor is not None:
        check_fits('factor', factor, (len(x),), 'x', x, torch.promote_types(x.dtype, torch.float32))
    if x.device.type == 'cpu' and backend is None:
        backend = 'reference'
    if choose_backend(x.device, backend, why_not_norm(x, 'add_norm')) != 'reference':
        output, total, *_ = differentiable('add_norm', x, branch, branch_bias, factor, weight, bias, eps)
        return total, output
    branch = branch if branch_bias is None else branch + branch_bias
    branch = branch if factor is None else branch * factor.to(x.dtype)[:, None, None, None]
    total = x + branch
    with without_autocast(x):
        return total, F.layer_norm(total, weight.shape, weight, bias, eps)


def has_add_norm(x: Tensor) -> bool:
    """Whether `add_norm` of such tokens runs as one kernel.

    A compiler makes one of the formula by itself, so that layers need not call the operator for that.
    """
    if not launches_take_time(x):
        return False
    return available_backends(x.device)[0] != 'reference' and why_not_norm(x, 'add_norm') is None


def why_not_norm(x: Tensor, name: str) -> str | None:
    """Why the CUDA kernels of an operator with a LayerNorm do not take `x`; None if they do."""
    if x.device.type == 'cpu':
        return f'{name} is compiled for CUDA alone'
    if x.dtype == torch.float64:
        return f'{name} on CUDA takes float32, float16 and bfloat16, got float64'
    if x.shape[-1] % 2 or x.shape[-1] > MAX_CHANNELS:
        return f'{name} on CUDA takes an even number of channels up to {MAX_CHANNELS}, got {x.shape[-1]}'
    return None
