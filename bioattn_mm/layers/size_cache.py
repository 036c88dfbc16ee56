"""Keeping what depends on parameters and input size only, in eval mode."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import nn

Value = TypeVar('Value')


class SizeCache:
    """The last few results that depend on a module's parameters and an input size, and on nothing else.

    Results are kept only while nothing can be trained: in eval mode with autograd off, outside of compilation. They
    are dropped when a parameter of the module changes (in place, by assignment, by a move to another device or
    dtype) and by `clear`, which the owner calls from `train()`.

    Args:
        max_sizes: Results kept; the least recently used one goes first.
        max_bytes: Memory of the results kept, in bytes, where they are tensors; None for any.
    """

    def __init__(self, max_sizes: int = 16, max_bytes: int | None = None) -> None:
        self.max_sizes = max_sizes
        self.max_bytes = max_bytes
        self._results: OrderedDict = OrderedDict()
        self._parameters_state: tuple = ()

    @staticmethod
    def is_open(module: nn.Module) -> bool:
        """Whether results that depend on the parameters of `module` are kept at this moment."""
        return not (module.training or torch.is_grad_enabled() or torch.compiler.is_compiling())

    def get(
        self, module: nn.Module, size: Hashable, compute: Callable[[], Value], shared: nn.Module | None = None
    ) -> Value:
        """Return the result kept for `size`, or compute it.

        Args:
            module: The owner, on whose parameters the result depends.
            size: What else it depends on.
            compute: Computes it.
            shared: Another module on whose parameters it depends.
        """
        if not self.is_open(module):
            return compute()
        parameters = [*module.parameters(), *(shared.parameters() if shared else ())]
        parameters_state = tuple(_state(parameter) for parameter in parameters)
        if parameters_state != self._parameters_state:
            self.clear()
            self._parameters_state = parameters_state
        if size not in self._results:
            self._results[size] = compute()
            while len(self._results) > self.max_sizes or self._is_too_big():
                self._results.popitem(last=False)
        self._results.move_to_end(size)
        return self._results[size]

    def clear(self) -> None:
        self._results.clear()

    def _is_too_big(self) -> bool:
        # The newest result stays in any case: it is about to be used.
        if self.max_bytes is None or len(self._results) == 1:
            return False
        return sum(result.nbytes for result in self._results.values()) > self.max_bytes

    def __len__(self) -> int:
        return len(self._results)

    def __reduce__(self) -> tuple:
        # A copied or pickled module (an EMA, say) has parameters of its own: it starts with nothing kept.
        return SizeCache, (self.max_sizes, self.max_bytes)


def _state(parameter: nn.Parameter) -> tuple:
    """What changes when a parameter's values change; its version counter counts writes in place."""
    version = 0 if parameter.is_inference() else parameter._version
    return parameter.data_ptr(), version, parameter.dtype, parameter.device
