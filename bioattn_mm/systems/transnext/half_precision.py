"""Mixed precision with few casts: LayerNorm that keeps bfloat16, and copies of many weights at once."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ...ops.registration import apply


class LayerNorm(nn.LayerNorm):
    """LayerNorm that takes and gives bfloat16 under autocast on a GPU, as PyTorch's does on the CPU alone.

    Layers before and after it cast nothing then. The statistics are float32. In float16 it is PyTorch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to the same shape."""
        if not takes_bfloat16(x.device.type):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            x, weight, bias = (tensor.to(torch.bfloat16) for tensor in (x, self.weight, self.bias))
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def takes_bfloat16(device: str) -> bool:
    """Whether `LayerNorm` takes bfloat16 on a device."""
    # The device last, which is unknown where torch.fx traces the layer.
    is_enabled = torch.is_autocast_enabled('cuda') and torch.get_autocast_dtype('cuda') == torch.bfloat16
    return is_enabled and device == 'cuda'


def copies_of(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Copies in another dtype: a launch for about a hundred of them, and as many for their gradients."""
    return apply(Copies, dtype, *tensors) if tensors and torch.is_grad_enabled() else _copies(tensors, dtype)


class Copies(torch.autograd.Function):
    """What `copies_of` computes."""

    @staticmethod
    def forward(ctx: FunctionCtx, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        of_parameters = list(gradients)
        for dtype in set(ctx.dtypes):
            found = [i for i, each in enumerate(gradients) if each is not None and ctx.dtypes[i] == dtype]
            for i, copy in zip(found, _copies([gradients[i] for i in found], dtype)):
                of_parameters[i] = copy
        return None, *of_parameters


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = list(map(partial(torch.empty_like, dtype=dtype), tensors))
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
