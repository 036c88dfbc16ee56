"""What an exported graph knows of its sizes: constants, or numbers that it reads from its input."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from mmdeploy.utils import is_dynamic_shape
from mmengine.config import Config
from torch import Tensor

# A length in pixels or tokens: an integer, or traced, a tensor without dimensions.
Length = int | Tensor
Grid = tuple[Length, Length]


@contextmanager
def from_sizes(deploy_config: Config) -> Iterator[None]:
    """Context for what depends on sizes and parameters alone: in a graph of one input size it becomes constants.

    In a graph of any size it is recorded like all the rest.
    """
    if is_dynamic_shape(deploy_config):
        yield
    else:
        with not_traced():
            yield


@contextmanager
def not_traced() -> Iterator[None]:
    """Nothing inside is recorded, and sizes are integers."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def integers(lengths: Iterable[Length]) -> tuple[int, ...]:
    """Lengths as integers; for `not_traced` alone, because traced ones would silently become constants."""
    return tuple(int(length) for length in lengths)


def divide(number: Length, divisor: Length) -> Tensor:
    """Quotient, rounded down, of numbers that are not negative: in ONNX one operator for rounding towards zero."""
    return torch.div(torch.as_tensor(number), divisor, rounding_mode='trunc')
