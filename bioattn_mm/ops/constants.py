"""Cache of tensors that depend on an input size only."""

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps

import torch


def cached_constant(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Cache a tensor that depends on hashable arguments only, such as a size and a device.

    On a GPU that saves launches that take longer than their arithmetic. The tensor is computed anew where PyTorch
    compiles, exports or traces, or in its FakeTensorMode, whose tensors must not be kept.
    """
    # A tensor that was made in inference mode could not be used in training later.
    compute = torch.inference_mode(False)(function)
    cached = lru_cache(maxsize=256)(compute)

    @wraps(function)
    def get(*arguments: Hashable) -> torch.Tensor:
        # The compiler first: it cannot follow the question for the mode.
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or _is_fake()
        return function(*arguments) if is_traced else cached(*arguments)

    return get


def _is_fake() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
