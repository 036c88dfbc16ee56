"""What the layers check of their arguments, and the precision that they compute in."""

import torch
from torch import Tensor

from ..errors import InputError


def channels_of_head(channels: int, num_heads: int) -> int:
    """Channels of each head; an `InputError` unless they divide."""
    if channels % num_heads:
        raise InputError(f'channels must be a multiple of num_heads, got {channels} and {num_heads}')
    return channels // num_heads


def full_precision(x: Tensor) -> Tensor:
    """float32, or float64 if it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
