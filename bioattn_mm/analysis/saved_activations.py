"""Memory of what a forward pass keeps for the backward pass."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn


def saved_bytes(forward: Callable[[], object], module: nn.Module) -> int:
    """Memory of the tensors that autograd keeps at the end of a forward pass, in bytes.

    Each storage counts once and as a whole, however many tensors and operators share it. Parameters and buffers of
    the module are not activations and do not count; the input is one, where it is kept.

    Args:
        forward: Runs the pass, with gradients, and returns what the backward pass would start from.
        module: Whose parameters and buffers do not count.
    """
    kept = weakref.WeakSet()

    def keep(tensor: Tensor) -> _Kept:
        # Autograd holds it as long as the tensor itself: what it drops before the end of the pass goes from the set.
        kept.add(packed := _Kept(tensor))
        return packed

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda packed: packed.tensor):
        output = forward()
    storages = (packed.tensor.untyped_storage() for packed in kept)
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    for tensor in (*module.parameters(), *module.buffers()):
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    del output
    return sum(sizes.values())


class _Kept:
    """A tensor as autograd keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        # An operator that keeps its own output would never be freed: the output holds the operator, too.
        self.tensor = tensor.detach()
