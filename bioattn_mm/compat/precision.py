"""The precision in which the ops compute."""

import torch
from torch import Tensor


def upcast_half(tensor: Tensor) -> Tensor:
    """`tensor` in float32 where it is float16 or bfloat16, else itself.

    Box coordinates, bilinear weights and sums lose too much in half precision; results are rounded once, when
    they are written to the caller's tensor.
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
