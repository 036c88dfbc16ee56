"""Cache of what depends on a module's parameters and the input size."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..ops.constants import can_be_kept, is_captured

Value = TypeVar('Value')


class SizeCache:
    """Least-recently-used cache of results that depend on a module's parameters and an input size only.

    It is used in eval mode with autograd off, where tensors can be kept (`can_be_kept`), and outside of CUDA graphs,
    which would go on with the results of parameters that have changed since; otherwise every result is computed. It
    is emptied when a parameter of the module changes (in place, by assignment, by a move to another device or dtype),
    and by `clear`. The module calls `clear` in `train()`: changes through `parameter.data` cannot be detected.
    Several threads may use it. Nothing is kept for parameters whose changes cannot be seen: see `_state`.

    Args:
        max_sizes: Number of results kept.
        max_bytes: Limit of the memory of all results, which have to be tensors then, in bytes; None for no limit.
    """

    def __init__(self, max_sizes: int = 16, max_bytes: int | None = None) -> None:
        self.max_sizes = max_sizes
        self.max_bytes = max_bytes
        self._results: OrderedDict = OrderedDict()
        self._parameters_state: tuple = ()
        self._lock = threading.Lock()

    @staticmethod
    def is_open(module: nn.Module) -> bool:
        """Whether results for `module` are cached in its present mode."""
        if module.training or torch.is_grad_enabled():
            return False
        return can_be_kept() and not is_captured()

    def get(
        self, module: nn.Module, size: Hashable, compute: Callable[[], Value], shared: nn.Module | None = None
    ) -> Value:
        """Return the cached result for `size`, or compute it.

        Args:
            module: The module that owns the cache; the result depends on its parameters.
            size: Key of the result: the input size, and a dtype if the result depends on one.
            compute: Computes the result.
            shared: A second module on whose parameters the result depends.
        """
        state = _state(module, shared) if self.is_open(module) else None
        if state is None:
            return compute()
        with self._lock:
            if state != self._parameters_state:
                self.clear()
                self._parameters_state = state
            if size in self._results:
                self._results.move_to_end(size)
                return self._results[size]
        result = compute()
        with self._lock:
            if state == self._parameters_state:
                self._results[size] = result
                while len(self._results) > self.max_sizes or self._is_too_big():
                    self._results.popitem(last=False)
        return result

    def clear(self) -> None:
        self._results.clear()

    def _is_too_big(self) -> bool:
        # The newest result, which is about to be used, is kept in any case.
        if self.max_bytes is None or len(self._results) == 1:
            return False
        return sum(result.nbytes for result in self._results.values()) > self.max_bytes

    def __len__(self) -> int:
        return len(self._results)

    def __reduce__(self) -> tuple:
        # A copied or pickled module (such as an EMA) has other parameters: its cache starts empty.
        return SizeCache, (self.max_sizes, self.max_bytes)


def _state(*modules: nn.Module | None) -> tuple | None:
    """A value that changes with the parameters of some modules; None where their changes cannot be seen.

    A replica of `DataParallel` has no parameters, and shares the cache of its module. Parameters that were made in
    inference mode do not count their in-place changes, and those of `torch.func.vmap` have no memory of their own.

    The address of a parameter alone does not tell it from one that came to the same memory after it, as with
    `torch.func.functional_call`; a weak reference to its storage does, and keeps no memory.
    """
    parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
    if not parameters or any(parameter.is_inference() for parameter in parameters):
        return None
    # Weights are also computed from buffers: torch.nn.utils.prune has a mask there.
    buffers = [buffer for module in modules if module is not None for buffer in module.buffers()]
    try:
        return tuple(
            (StorageWeakRef(each.untyped_storage()), each.data_ptr(), each._version, each.dtype, each.device)
            for each in (*parameters, *buffers)
        )
    except RuntimeError:
        return None
