"""CUDA graphs on the CPU: what `torch.cuda.make_graphed_callables` calls, over operators that are recorded.

A replay runs the operators of a capture again, without the Python code that called them, and puts the results where
the first ones were in memory. So inputs, activations, outputs and gradients have fixed places, which the next replay
overwrites, and a tensor from outside is read again from where it was. Random numbers are drawn anew.

As on a GPU, a capture changes nothing outside of it, and graphs of one pool share its memory: later ones put their
results where a graph needed the memory no more when its capture ended. Here a replay fills those with NaN.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def place_of(tensor: Tensor) -> int:
    """Where a tensor's memory begins, which its views share."""
    return tensor.untyped_storage().data_ptr()


class Graph:
    """A stand-in for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable, tuple, dict, list]] = []
        self.results: list[Tensor] = []  # in memory of its own
        self.later: list[Graph] = []  # those of the same pool that were captured after it

    def replay(self) -> None:
        with torch.no_grad():
            for result in (result for graph in self.later for result in graph.results):
                result.fill_(torch.nan)
            for function, args, kwargs, results in self.calls:
                again = function(*args, **kwargs)
                for result, value in zip(results, tree_leaves(again), strict=True):
                    # Views, and what is changed in place, are where they are.
                    if isinstance(result, Tensor) and result.data_ptr() != value.data_ptr():
                        result.copy_(value)


class Capture(TorchDispatchMode):
    """A stand-in for `torch.cuda.graph`."""

    def __init__(self, graph: Graph, pool: list[Graph], capture_error_mode: str = 'global') -> None:
        super().__init__()
        assert capture_error_mode == 'thread_local'  # else no other thread can pin memory, as data loaders do
        for earlier in pool:
            earlier.later.append(graph)
        pool.append(graph)
        self.graph = graph
        self.own: set[int] = set()
        self.outside: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, function: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            if id(tensor) not in self.own:
                self.outside.setdefault(id(tensor), (tensor, tensor.clone()))
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError('operation not permitted when stream is capturing')
        results = function(*args, **kwargs)
        leaves = tree_leaves(results)
        self.own.update(map(id, leaves))
        self.graph.calls.append((function, args, kwargs, leaves))
        given = set(map(place_of, tensors))
        new = [leaf for leaf in leaves if isinstance(leaf, Tensor) and place_of(leaf) not in given]
        self.graph.results += [tensor for tensor in new if tensor.is_floating_point()]
        return results

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        for tensor, value in self.outside.values():
            if not torch.equal(tensor, value):
                tensor.data.copy_(value)  # autograd must not take it for a change: on a GPU nothing was computed


@pytest.fixture
def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch captures and replays on the CPU."""
    monkeypatch.setattr(torch.cuda, 'CUDAGraph', Graph)
    monkeypatch.setattr(torch.cuda, 'graph', Capture)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    monkeypatch.setattr(torch.cuda, 'Stream', object)  # a class: transformers annotates with it
    monkeypatch.setattr(torch.cuda, 'stream', lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, 'graph_pool_handle', list)
    monkeypatch.setattr('bioattn_mm.training.cuda_graphs.require_gpu', lambda: None)
