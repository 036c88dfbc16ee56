"""Cache of tensors that depend on an input size only."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps

import torch

from .portable import is_traced, is_transformed

# What a capture has read of the caches; None where nothing is captured.
_captured: list[torch.Tensor] | None = None


@contextmanager
def capture_of_constants() -> Iterator[list[torch.Tensor]]:
    """Context of a capture as a CUDA graph, which reads tensors where they were in memory at that time.

    What depends on parameters must be computed within, so that it is in the graph; see `is_captured`.

    Yields:
        The cached constants that are read. Whoever keeps the graph has to keep them, too, as the caches drop what was
        not used for long.
    """
    global _captured
    before, _captured = _captured, []
    try:
        yield _captured
    finally:
        _captured = before


def is_captured() -> bool:
    """Whether the calls that run now become a CUDA graph, or are the warm-up of one."""
    return _captured is not None


def cached_constant(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Cache a tensor that depends on hashable arguments only, such as a size and a device.

    On a GPU that saves launches that take longer than their arithmetic. The tensor is computed anew where it must not
    be kept (`can_be_kept`).
    """
    # A tensor that was made in inference mode could not be used in training later.
    compute = torch.inference_mode(False)(function)
    cached = lru_cache(maxsize=256)(compute)

    @wraps(function)
    def get(*arguments: Hashable) -> torch.Tensor:
        if not can_be_kept():
            return function(*arguments)
        constant = cached(*arguments)
        if _captured is not None:
            _captured.append(constant)
        return constant

    return get


def can_be_kept() -> bool:
    """Whether tensors that are computed now are of use later.

    They are not where PyTorch compiles, exports or traces, in its FakeTensorMode, or within a transform of
    torch.func, after which its tensors have no memory.
    """
    # The compiler first: it cannot follow the question for the mode.
    if is_traced() or is_transformed():
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None
