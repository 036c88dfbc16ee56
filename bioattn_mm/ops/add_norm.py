"""What lies between two branches of a pre-norm transformer: residual, stochastic depth, and the next LayerNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .registration import differentiable

# The most channels of the CUDA kernels: of their sums over the tokens, shared memory has to hold those of a warp.
MAX_CHANNELS = 4096
# The CPU kernels take at least one vector of channels, of 64 bytes in the widest instruction set.
MIN_CHANNELS = 16


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
    """`sum = x + factor * (branch + branch_bias)`, and its LayerNorm, without autocast.

    The kernels compute in float32, and round the two results alone.

    Args:
        x: Tokens, (B, H, W, C), float16, bfloat16, float32 or float64.
        branch: What is added, (B, H, W, C), in the dtype of `x` as all others but `factor`.
        weight: Weight of the norm, (C,).
        bias: Bias of the norm, (C,).
        eps: What the norm adds to the variance.
        factor: Factor of each image's branch, (B,), float32 or for float64 float64, without gradient; None for 1.
        branch_bias: (C,), the bias of the linear layer that gave `branch`.
        backend: 'cpu' (no float16, C at least 16), 'cuda' (one launch; C even and at most 4096, no
            float64) or 'reference'; see `choose_backend`.

    Returns:
        The sum and the normalised sum, (B, H, W, C) in the dtype of `x`.
    """
    if x.dim() != 4:
        raise ValueError(f'x must be (B, H, W, C), got shape {tuple(x.shape)}')
    check_dtype('x', x)
    channels = x.shape[3:]
    of_channels = dict(weight=(weight, channels), bias=(bias, channels), branch_bias=(branch_bias, channels))
    check_fits('x', x, x.dtype, branch=(branch, x.shape), **of_channels)
    full = torch.promote_types(x.dtype, torch.float32)
    check_fits('x', x, full, factor=(factor, x.shape[:1]))
    if choose_backend(x.device, backend, why_not_norm(x, 'add_norm')) != 'reference':
        if x.device.type == 'cpu':
            weight, bias = weight.to(full), bias.to(full)
        output, total, *_ = differentiable('add_norm', x, branch, branch_bias, factor, weight, bias, eps)
        return total, output
    branch = branch if branch_bias is None else branch + branch_bias
    branch = branch if factor is None else branch * factor.to(x.dtype)[:, None, None, None]
    total = x + branch
    with without_autocast(x):
        return total, F.layer_norm(total, weight.shape, weight, bias, eps)


def why_not_norm(x: Tensor, name: str) -> str | None:
    """Why no kernel of an operator with a LayerNorm takes `x`; None if one does."""
    if x.device.type == 'cpu':
        if name != 'add_norm':
            return f'{name} is compiled for CUDA alone'
        if x.dtype == torch.float16 or x.shape[-1] < MIN_CHANNELS:
            takes = f'takes {MIN_CHANNELS} channels or more and no float16, got {x.shape[-1]} of {x.dtype}'
            return f'{name} on the CPU {takes}'
        return None
    if x.dtype == torch.float64:
        return f'{name} on CUDA takes float32, float16 and bfloat16, got float64'
    if x.shape[-1] % 2 or x.shape[-1] > MAX_CHANNELS:
        return f'{name} on CUDA takes an even number of channels up to {MAX_CHANNELS}, got {x.shape[-1]}'
    return None
