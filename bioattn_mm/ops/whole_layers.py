"""Whether layers are called one by one, or kernels may compute more than one of them."""

from torch import Tensor, nn

from .portable import is_portable, is_traced


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a call of one of some modules is more than its forward pass."""
    return any(
        module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in modules
    )


def is_eager() -> bool:
    """Whether layers run at once: no graph is traced, and no formulas of standard operators are asked for."""
    return not is_traced() and not is_portable()


def launches_take_time(x: Tensor) -> bool:
    """Whether launches that can be left out are worth it: not on the CPU, nor in a graph that is traced."""
    return x.device.type != 'cpu' and is_eager()
