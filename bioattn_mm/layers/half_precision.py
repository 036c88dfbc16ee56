"""Mixed precision with few casts: all weights of a stage are cast together, and LayerNorm keeps bfloat16."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..ops.portable import is_transformed


class LayerNorm(nn.LayerNorm):
    """LayerNorm that takes and gives bfloat16 under autocast on a GPU, as PyTorch's does on the CPU.

    PyTorch's takes and gives float32 there, so that each layer before and after it casts. The statistics are float32
    in either case. In float16, which has a smaller range, it is PyTorch's.
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


class Copies(torch.autograd.Function):
    """Copies of float32 tensors in another dtype: one launch for about a hundred, and one for their gradients."""

    @staticmethod
    def forward(ctx, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(ctx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        copies = iter(_copies([gradient for gradient in gradients if gradient is not None], torch.float32))
        return None, *[None if gradient is None else next(copies) for gradient in gradients]


def _copies(tensors: list[Tensor] | tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


def copied_weights(module: nn.Module) -> AbstractContextManager[None]:
    """Context in which the layers of a module have copies of their weights in autocast's dtype, if it is enabled.

    Autocast casts each weight by itself, and its gradient. The copies are those that it would make, and the gradients
    come to the float32 parameters. A module says by its attribute `cast_at_once` which of its layers, or parameters
    of them, are used as autocast would cast them. Compilers make one kernel of such casts by themselves. There are
    none with autograd off: several threads may then run a model, and each would see the copies of the others.

    Args:
        module: The module whose layers, and those of its parts, have them.
    """
    if torch.compiler.is_compiling() or is_transformed() or not torch.is_grad_enabled():
        return nullcontext()
    # There is no autocast for tensors without data, on the device meta. A replica of DataParallel has no parameters.
    device = next((parameter.device.type for parameter in module.parameters()), 'meta')
    if device == 'meta' or not torch.is_autocast_enabled(device):
        return nullcontext()
    return _copied(list(_parameters(module, device)), torch.get_autocast_dtype(device))


def _parameters(module: nn.Module, device: str) -> Iterator[tuple[nn.Module, str]]:
    """Layers and names of their parameters that are copied."""
    for part in module.modules():
        for path in getattr(part, 'cast_at_once', ()):
            child, _, only = path.partition('.')
            layer = getattr(part, child, None)
            if layer is None:  # a variant that has no such layer
                continue
            if isinstance(layer, nn.LayerNorm) and not (isinstance(layer, LayerNorm) and takes_bfloat16(device)):
                continue
            for name, parameter in layer._parameters.items():
                # A parameter that is divided among processes is whole only when its own module runs.
                is_here = parameter is not None and parameter.numel() and not is_traceable_wrapper_subclass(parameter)
                if is_here and parameter.dtype == torch.float32 and only in ('', name):
                    yield layer, name


@contextmanager
def _copied(places: list[tuple[nn.Module, str]], dtype: torch.dtype) -> Iterator[None]:
    parameters = [layer._parameters[name] for layer, name in places]
    copies = Copies.apply(dtype, *parameters)
    try:
        for (layer, name), copy in zip(places, copies):
            layer._parameters[name] = copy
        yield
    finally:
        for (layer, name), parameter in zip(places, parameters):
            layer._parameters[name] = parameter
