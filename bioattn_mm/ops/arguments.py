"""What the operators check of their arguments, and what autocast makes of them."""

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of a tensor, or the one that autocast gives it; float64 and integers it leaves alone."""
    device = tensor.device.type
    if tensor.is_floating_point() and tensor.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def autocast(*tensors: Tensor) -> list[Tensor]:
    """What the compiled operators do under autocast."""
    return [tensor.to(autocast_dtype(tensor)) for tensor in tensors]


def check_tokens(name: str, tokens: Tensor) -> None:
    """Raise a `ValueError` unless `tokens` are (B, H, W, heads, d) of a dtype that the operators have."""
    if tokens.dim() != 5:
        raise ValueError(f'{name} must be (B, H, W, heads, d), got shape {tuple(tokens.shape)}')
    if tokens.dtype not in DTYPES:
        accepted = ', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)
        raise ValueError(f'{name} must be one of {accepted}, got {str(tokens.dtype).removeprefix("torch.")}')


def check_offsets(name: str, tensor: Tensor, shape: str) -> int:
    """The number of window offsets, the last dimension; a `ValueError` unless it is the square of an odd number."""
    offsets = tensor.shape[-1] if tensor.dim() else 0
    window_size = round(offsets**0.5)
    if window_size % 2 == 0 or window_size**2 != offsets:
        raise ValueError(
            f'{name} must be {shape} with k odd, got shape {tuple(tensor.shape)}: '
            f'{offsets} is not the square of an odd number'
        )
    return offsets


def check_shape_and_device(name: str, tensor: Tensor, other_name: str, other: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a `ValueError` unless `other` has the shape and the device that fit `tensor`."""
    if tuple(other.shape) != shape:
        raise ValueError(
            f'{other_name} must have shape {shape} to fit {name} {tuple(tensor.shape)}, got {tuple(other.shape)}'
        )
    if other.device != tensor.device:
        raise ValueError(f'{other_name} is on {other.device}, but {name} is on {tensor.device}')
