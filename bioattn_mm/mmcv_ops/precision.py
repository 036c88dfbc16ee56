"""The precision in which the ops compute."""

import torch
from torch import Tensor


def upcast_half(tensor: Tensor) -> Tensor:
    """`tensor` in float32 if it is float16 or bfloat16, otherwise unchanged.

    Half precision is too coarse for box coordinates, bilinear weights and sums. Results are rounded once, when they
    are written to the caller's tensor.
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
