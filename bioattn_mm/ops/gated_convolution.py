"""The gate of ConvGLU: depth-wise convolution, GELU, product."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .registration import differentiable


def gated_convolution(
    x: Tensor, weight: Tensor, bias: Tensor, backend: str | None = None, x_bias: Tensor | None = None
) -> Tensor:
    """`GELU(convolution(a)) * b` with `a, b = x.chunk(2, -1)` and a depth-wise 3 x 3 convolution (TransNeXt, 3.2).

    Args:
        x: (B, H, W, 2 C), float16, bfloat16, float32 or float64.
        weight: Weight of the convolution, (C, 1, 3, 3), float32 or for float64 `x` float64, as `bias`.
        bias: (C,).
        backend: 'cpu' (C a multiple of 16, no float16), 'cuda' (C even, no float64) or 'reference'.
        x_bias: What is added to `x` first, (2 C,), in the dtype of `bias`: the bias of the linear layer before.

    Returns:
        (B, H, W, C) in the dtype of `x`, under autocast as well.
    """
    if x.dim() != 4 or 0 in x.shape[1:] or x.shape[3] % 2:
        raise ValueError(f'x must be (B, H, W, 2 C), got shape {tuple(x.shape)}')
    check_dtype('x', x)
    channels, dtype = x.shape[3] // 2, torch.promote_types(x.dtype, torch.float32)
    of_convolution = dict(weight=(weight, (channels, 1, 3, 3)), bias=(bias, (channels,)))
    check_fits('x', x, dtype, **of_convolution, x_bias=(x_bias, (2 * channels,)))
    if choose_backend(x.device, backend, _unsupported(x)) != 'reference':
        return differentiable('gated_convolution', x, x_bias, weight, bias)
    x = x if x_bias is None else x + x_bias.to(x.dtype)
    with without_autocast(x):
        gate, features = x.chunk(2, dim=-1)
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        gate = F.conv2d(gate.permute(0, 3, 1, 2), weight, bias, padding=1, groups=weight.shape[0])
        return F.gelu(gate.permute(0, 2, 3, 1)) * features


def _unsupported(x: Tensor) -> str | None:
    """Why the kernels of its device do not take `x`; None if they do."""
    channels = x.shape[3] // 2
    if x.device.type == 'cpu':
        if x.dtype == torch.float16:
            return 'gated_convolution on the CPU takes bfloat16, float32 and float64, got float16'
        return f'gated_convolution on the CPU takes 16, 32, ... channels, got {channels}' if channels % 16 else None
    if x.dtype == torch.float64:
        return 'gated_convolution on CUDA takes float32, float16 and bfloat16, got float64'
    return f'gated_convolution on CUDA takes an even number of channels, got {channels}' if channels % 2 else None
