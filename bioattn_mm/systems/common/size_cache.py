"""Cache of what depends on a module's parameters and the input size."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...ops.constants import can_be_kept, is_captured

Result = TypeVar('Result', Tensor, tuple[Tensor, ...])


class SizeCache:
    """Least-recently-used cache of tensors that depend on a module's parameters and an input size only.

    It is used in eval mode with autograd off, where tensors can be kept, and outside of CUDA graphs, which would keep
    the results of parameters that have changed since. It is emptied when a parameter of the module changes, in
    place, by assignment or by a move. A module that is `SizeCaching` empties it in `train()`: changes through
    `parameter.data` cannot be detected. Several threads may use it.

    Args:
        max_sizes: Number of results kept.
        max_bytes: Limit of the memory of all results in bytes; None for no limit. The newest is kept in any case.
            With a limit, results are single tensors.
    """

    def __init__(self, max_sizes: int = 16, max_bytes: int | None = None) -> None:
        self.max_sizes = max_sizes
        self.max_bytes = max_bytes
        self._results: OrderedDict = OrderedDict()
        self._state: tuple = ()
        self._tensors: list[Tensor] = []
        self._lock = threading.Lock()

    @staticmethod
    def is_open(module: nn.Module) -> bool:
        """Whether results for `module` are cached in its present mode."""
        return not (module.training or torch.is_grad_enabled()) and can_be_kept() and not is_captured()

    def get(
        self, module: nn.Module, size: Hashable, compute: Callable[[], Result], shared: nn.Module | None = None
    ) -> Result:
        """Return the cached result for `size`, which may include a dtype, or compute it.

        It depends on the parameters of the module that owns the cache, and on those of a second one, `shared`.
        """
        if not self.is_open(module):
            return compute()
        tensors = _tensors(module) + ([] if shared is None else _tensors(shared))
        state = _state(tensors)
        if state is None:
            return compute()
        with self._lock:
            if state != self._state:
                self.clear()
                # The tensors are kept: others would come to their memory, as with `torch.func.functional_call`.
                self._state, self._tensors = state, tensors
            if size in self._results:
                self._results.move_to_end(size)
                return self._results[size]
        result = compute()
        with self._lock:
            if state == self._state:
                self._results[size] = result
                while len(self._results) > self.max_sizes or self._is_too_big():
                    self._results.popitem(last=False)
        return result

    def clear(self) -> None:
        self._results.clear()

    def _is_too_big(self) -> bool:
        if self.max_bytes is None or len(self._results) == 1:
            return False
        return sum(result.nbytes for result in self._results.values()) > self.max_bytes

    def __len__(self) -> int:
        return len(self._results)

    def __reduce__(self) -> tuple:
        # A copied or pickled module (such as an EMA) has other parameters: its cache starts empty.
        return SizeCache, (self.max_sizes, self.max_bytes)


class SizeCaching(nn.Module):
    """Base of modules whose attributes are caches: `train()` empties them."""

    def train(self, mode: bool = True) -> 'SizeCaching':
        for value in vars(self).values():
            if isinstance(value, SizeCache):
                value.clear()
        return super().train(mode)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers of a module: torch.nn.utils.prune has its masks in these."""
    found = []
    for tensors in (module._parameters, module._buffers):
        for name in tensors:
            if tensors[name] is not None:
                found.append(tensors[name])
    for name in module._modules:
        found += _tensors(module._modules[name])
    return found


def _state(tensors: list[Tensor]) -> tuple | None:
    """A value that changes with some tensors; None where their changes cannot be seen.

    A replica of `DataParallel` has no parameters, and shares the cache of its module. Parameters that were made in
    inference mode do not count their in-place changes, and those of `torch.func.vmap` have no memory of their own.
    """
    try:
        return tuple([(id(each), each.data_ptr(), each._version, each.dtype) for each in tensors]) or None
    except RuntimeError:
        return None
