"""Whether others look at the calls of layers."""

from torch import nn


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
