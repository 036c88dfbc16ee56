"""Memory of the activations that a forward pass saves for the backward pass."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn


def saved_bytes(forward: Callable[[], object], module: nn.Module) -> int:
    """Memory of the tensors that autograd holds at the end of a forward pass, in bytes.

    Each storage counts once and as a whole, however many tensors share it. Parameters and buffers of the module do
    not count; the input does if autograd saves it.

    Args:
        forward: Runs the forward pass with gradients and returns its output.
        module: The module whose parameters and buffers do not count.
    """
    kept = weakref.WeakSet()

    def keep(tensor: Tensor) -> _Kept:
        # Autograd holds the packed object as long as it needs the tensor; then it leaves the weak set, too.
        kept.add(packed := _Kept(tensor))
        return packed

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda packed: packed.tensor):
        output = forward()
    storages = (packed.tensor.untyped_storage() for packed in kept)
    sizes = {storage._cdata: storage.nbytes() for storage in storages}
    for tensor in (*module.parameters(), *module.buffers()):
        sizes.pop(tensor.untyped_storage()._cdata, None)
    del output
    return sum(sizes.values())


class _Kept:
    """A saved tensor, in an object that a `WeakSet` can hold."""

    def __init__(self, tensor: Tensor) -> None:
        # Detached: an operator that saves its own output would otherwise form a reference cycle with it.
        self.tensor = tensor.detach()
