"""When a layer may be computed in parts, inside of kernels that compute more than the layer."""

import torch.nn.functional as F
from torch import Tensor, nn


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a call of one of some modules is more than its forward pass."""
    return any(
        module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in modules
    )


def product_and_bias(linear: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a linear layer gives without its bias, and the bias, for a kernel that adds it.

    A GPU sums the gradient of a bias in a launch of its own, unless the kernel that adds the bias does it. Another
    layer in the place of `nn.Linear`, such as a quantised one, is called as it is: there is no bias to add then.
    """
    if type(linear) is not nn.Linear or has_hooks(linear):
        return linear(x), None
    return F.linear(x, linear.weight), linear.bias
