"""Checks of the operators' arguments, and what PyTorch's modes make of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from .windows import window_size_of

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class AggregatedAttentionInputs(NamedTuple):
    """The tensors of `aggregated_attention`, which documents them, in the order of its arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    pooled_key: Tensor
    pooled_value: Tensor
    window_bias: Tensor
    pooled_bias: Tensor
    pooled_bias_rows: Tensor
    token_weights: Tensor


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that an operator computes with: the tensor's, or autocast's unless it is float64 or an integer."""
    device = tensor.device.type
    takes_part = tensor.is_floating_point() and tensor.dtype != torch.float64 and not tensor.is_meta
    return torch.get_autocast_dtype(device) if takes_part and torch.is_autocast_enabled(device) else tensor.dtype


def without_autocast(tensor: Tensor) -> torch.autocast:
    """Context without autocast on a tensor's device; the device meta, whose tensors have no data, has no autocast."""
    return torch.autocast('cpu' if tensor.is_meta else tensor.device.type, enabled=False)


def check_tokens(name: str, tokens: Tensor) -> None:
    """Raise a `ValueError` unless `tokens` are (B, H, W, heads, d) in a dtype of the operators."""
    if tokens.dim() != 5:
        raise ValueError(f'{name} must be (B, H, W, heads, d), got shape {tuple(tokens.shape)}')
    check_dtype(name, tokens)


def check_dtype(name: str, tensor: Tensor) -> None:
    """Raise a `ValueError` unless a tensor has a dtype of the operators."""
    if tensor.dtype not in DTYPES:
        accepted = ', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)
        raise ValueError(f'{name} must be one of {accepted}, got {str(tensor.dtype).removeprefix("torch.")}')


def check_offsets(name: str, tensor: Tensor, shape: str) -> int:
    """The last dimension, k * k offsets in a window; a `ValueError` unless it is the square of an odd number k."""
    offsets = tensor.shape[-1] if tensor.dim() else 0
    window_size = window_size_of(offsets)
    if window_size % 2 == 0 or window_size**2 != offsets:
        raise ValueError(
            f'{name} must be {shape} with k odd, got shape {tuple(tensor.shape)}: '
            f'{offsets} is not the square of an odd number'
        )
    return offsets


def check_fits(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    to: str,
    first: Tensor,
    dtype: torch.dtype | None = None,
) -> None:
    """Raise a `ValueError` unless a tensor has a shape, and fits the first argument of the operator, named `to`.

    It must have the device of the first argument, and its dtype after autocast, or else `dtype` as it is.
    """
    check_shape(name, tensor, shape, to, first)
    if tensor.dtype != dtype if dtype else autocast_dtype(tensor) != autocast_dtype(first):
        raise ValueError(f'{name} must be {dtype or first.dtype} to fit {to}, got {tensor.dtype}')


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], to: str, first: Tensor) -> None:
    """`check_fits` for any dtype."""
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f'{name} must have shape {shape} to fit {to} {tuple(first.shape)}, got {tuple(tensor.shape)}'
        )
    if tensor.device != first.device:
        raise ValueError(f'{name} is on {tensor.device}, but {to} is on {first.device}')
