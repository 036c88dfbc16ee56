"""Sizes in an exported graph: constants, or numbers that the graph reads from its input."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from mmdeploy.utils import is_dynamic_shape
from mmengine.config import Config
from torch import Tensor

# A length in pixels or tokens: an integer or, while tracing, a 0-dimensional tensor.
Length = int | Tensor
Grid = tuple[Length, Length]


def from_sizes(deploy_config: Config) -> AbstractContextManager[None]:
    """Context for what is computed from sizes and parameters alone: a constant in a graph of fixed size."""
    return nullcontext() if is_dynamic_shape(deploy_config) else not_traced()


@contextmanager
def not_traced() -> Iterator[None]:
    """Context that is not traced; sizes are integers in it."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)
