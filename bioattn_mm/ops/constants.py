"""Cache of tensors that depend on an input size only."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps

import torch

Constant = torch.Tensor | tuple[torch.Tensor, ...]

# The cached tensors that a capture has read; None where nothing is captured.
_captured: list[Constant] | None = None


@contextmanager
def capture_of_constants() -> Iterator[list[Constant]]:
    """Context of a capture as a CUDA graph, which reads tensors where they were in memory at that time.

    Yields:
        The cached constants that are read: whoever keeps the graph has to keep them, too.
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


def cached_constant(function: Callable[..., Constant]) -> Callable[..., Constant]:
    """Cache tensors that depend on hashable arguments only, such as a size and a device, where `can_be_kept`."""
    # A tensor that was made in inference mode could not be used in training later.
    compute = torch.inference_mode(False)(function)
    cached = lru_cache(maxsize=256)(compute)

    @wraps(function)
    def get(*arguments: Hashable) -> Constant:
        if not can_be_kept():
            return function(*arguments)
        constant = cached(*arguments)
        if _captured is not None:
            _captured.append(constant)
        return constant

    return get


def can_be_kept() -> bool:
    """Whether tensors that are computed now are of use later: not of a graph, a transform or FakeTensorMode."""
    # The compiler first: it cannot follow the other questions.
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None
