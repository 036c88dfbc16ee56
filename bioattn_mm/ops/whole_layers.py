"""Whether layers are called one by one, or kernels may compute more than one of them."""

from torch import Tensor, nn

from .portable import is_portable, is_traced


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a call of one of some modules is more than its forward pass."""
    return any(
        module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in modules
    )


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of a layer is no more than the forward pass of its kind, which kernels may compute instead.

    It is more for a layer of a derived class, such as a quantised one or one with adapters, and for one with hooks.
    """
    return type(layer) is kind and not has_hooks(layer)


def is_eager() -> bool:
    """Whether layers run at once: no graph is traced, and no formulas of standard operators are asked for."""
    return not is_traced() and not is_portable()


def launches_take_time(x: Tensor) -> bool:
    """Whether launches that can be left out are worth it: not on the CPU, nor in a graph that is traced."""
    return x.device.type != 'cpu' and is_eager()
