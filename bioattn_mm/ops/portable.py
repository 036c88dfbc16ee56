"""Formulas for graphs that other runtimes take: of standard operators, without loops that depend on the size."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_is_portable = False


@contextmanager
def portable_formulas() -> Iterator[None]:
    """Context in which operators and layers compute with what ONNX has: no compiled operators, no complex numbers."""
    global _is_portable
    before, _is_portable = _is_portable, True
    try:
        yield
    finally:
        _is_portable = before


def is_portable() -> bool:
    """Whether formulas of standard operators are asked for."""
    return _is_portable


def is_traced() -> bool:
    """Whether a graph is made, by torch.compile, torch.export or torch.jit."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def is_transformed() -> bool:
    """Whether a transform of torch.func runs, such as grad or vmap: its tensors do not tell what is asked of them."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_exported() -> bool:
    """Whether a graph is made, in which sizes may be symbols: no loop depends on them."""
    return _is_portable or torch.compiler.is_exporting()


def is_same_grid(grid: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two grids, (height, width), are the same; a grid whose size is a symbol is no other, known one."""
    if not is_traced():
        return tuple(grid) == tuple(other)
    return all(_is_known(length, known) for length, known in zip(grid, other))


def _is_known(length: int, other: int) -> bool:
    """Whether two lengths are the same at all sizes of a graph; of lengths of torch.jit, tensors, it is not known."""
    if isinstance(length, Tensor) or isinstance(other, Tensor):
        return False
    if not (is_symbol(length) or is_symbol(other)):
        return length == other
    # A comparison by itself would restrict the graph to the sizes for which it has the result of the example.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(length == other)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x^2 + y^2), by `torch.hypot` where that is to be had: ONNX has no such operator."""
    return torch.sqrt(x * x + y * y) if _is_portable else torch.hypot(x, y)


def is_symbol(length: int) -> bool:
    """Whether a length is a symbol of a graph that is exported or compiled for any size, or traced, a tensor."""
    if isinstance(length, Tensor):
        return True
    if not torch.compiler.is_compiling():  # true of an export, too
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(length)


def size_of_cells(length: int, number: int) -> int | None:
    """Size of the cells into which a length is divided; None if there is, or for a symbol may be, a remainder."""
    size, rest = length // number, length % number
    # The quotient of two symbols, such as the tokens and the pooled grid of a stage, may be a number. What torch.jit
    # traces are tensors, of which nothing is known.
    is_number = isinstance(size, (int, torch.SymInt)) and not is_symbol(size)
    return int(size) if is_number and _is_known(rest, 0) else None


def cells_of_axis(length: int, target: int, device: torch.device | None) -> tuple[Tensor, Tensor]:
    """Start and end (exclusive) of each cell of adaptive pooling along an axis: two of int64 (target,)."""
    cell = torch.arange(target, device=device)
    # Rounded towards zero, a quotient is one operator in ONNX. Inductor of torch 2.11 fails at a sum of two of these.
    mode = 'trunc' if _is_portable else 'floor'
    bounds = cell * length, (cell + 1) * length + target - 1
    start, end = (torch.div(bound, target, rounding_mode=mode) for bound in bounds)
    return start, end
