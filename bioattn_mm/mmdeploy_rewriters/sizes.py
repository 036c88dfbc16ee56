"""Sizes in an exported graph: constants, or numbers that the graph reads from its input."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from mmdeploy.utils import is_dynamic_shape
from mmengine.config import Config
from torch import Tensor

# A length in pixels or tokens: an integer or, while tracing, a 0-dimensional tensor.
Length = int | Tensor
Grid = tuple[Length, Length]


@contextmanager
def from_sizes(deploy_config: Config) -> Iterator[None]:
    """Context for computations from sizes and parameters alone: in a graph of fixed size their results are constants.

    In a graph of dynamic size they are traced like everything else.
    """
    if is_dynamic_shape(deploy_config):
        yield
    else:
        with not_traced():
            yield


@contextmanager
def not_traced() -> Iterator[None]:
    """Context that is not traced; sizes are integers in it."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def integers(lengths: Iterable[Length]) -> tuple[int, ...]:
    """Lengths as integers; only for use in `not_traced`, because traced lengths would silently become constants."""
    return tuple(int(length) for length in lengths)
