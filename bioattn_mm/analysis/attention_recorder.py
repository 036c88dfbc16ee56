"""Recording what goes into every attention layer of a backbone, of which attention weights are made later.

The layers of this package have a method that returns weights. Those of other libraries have none: their weights are
caught where their own forward computes them, whatever it does to queries, keys and logits before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..systems.common.attention_maps import AttentionMap, AttentionMaps, Recording
from ..systems.common.layout import Grid

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
# Class token, token of distillation, registers: a sequence with more tokens before those of a grid has another grid.
MAX_PREFIX = 16
# Strides of the grids that are tried last.
STRIDES = (4, 8, 16, 32, 64, 7, 14)


@torch.no_grad()
def record_attention(backbone: nn.Module, x: Tensor) -> list[Recording]:
    """Run a backbone, and keep what goes into each of its attention layers, in the order in which they run.

    A layer takes part if the backbone's method `attention_layers()` names it. Of backbones without that method, each
    layer does whose forward has one softmax over keys: as `F.scaled_dot_product_attention`, as a softmax of
    (B, heads, N, N), or in `nn.MultiheadAttention`. Its tokens are those of a grid, behind a class token or other
    ones, or those of windows, whose size an attribute `window_size` of the layer, or of one that it is in, says. So
    do those of ViT, DeiT, BEiT and Swin in timm, mmpretrain, mmdet and mmseg.

    Args:
        backbone: In eval mode. One that gives feature maps, (B, C, H, W) each.
        x: Its input, (B, 3, H, W).
    """
    if getattr(backbone, 'attention_layers', None) is None:
        return _record_other_attention(backbone, x)
    calls = []
    names = {layer: name for name, layer in backbone.attention_layers().items()}
    handles = [layer.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True) for layer in names]
    try:
        outputs = backbone(x)
    finally:
        for handle in handles:
            handle.remove()
    grids = [tuple(output.shape[2:]) for output in outputs if output.dim() == 4]
    if not grids:  # the outputs of a classifier have none
        grids = [tuple(grid) for _, grid in backbone.iterate_stages(x)]
    return [
        Recording(names[layer], layer, inputs, keywords, _grid_of(inputs, grids), backbone)
        for layer, inputs, keywords in calls
    ]


def _grid_of(inputs: tuple, grids: list[Grid]) -> Grid:
    """Grid of a layer's tokens: the input's own, the one that follows it, or one of `grids` with as many tokens."""
    x = inputs[0]
    if x.dim() == 4:
        return tuple(x.shape[1:3])
    if len(inputs) > 1:
        return tuple(inputs[1])
    # Tokens are one more than those of a grid where there is a class token.
    return next(grid for grid in grids if grid[0] * grid[1] == x.shape[1] - 1)


@dataclass
class Windows:
    """A grid of tokens, shifted and cut into windows, as Swin does; all are (height, width) in tokens.

    Attributes:
        grid: The grid, which is padded at the bottom and right to whole windows, before or after it is rolled.
        size: A window.
        shift: By how much the grid is rolled, up and to the left.
        rolled: What is rolled: the grid, or the padded grid.
    """

    grid: Grid
    size: Grid
    shift: Grid = (0, 0)
    rolled: Grid | None = None

    @property
    def padded(self) -> Grid:
        return tuple(-(-length // size) * size for length, size in zip(self.grid, self.size))

    @property
    def number(self) -> int:
        return (self.padded[0] // self.size[0]) * (self.padded[1] // self.size[1])

    def locate(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The windows of some tokens, int64 (queries,), and their places there, in row-major order, (queries,).

        Also the rows, (queries, h), and columns, (queries, w), of each window; those of padding lie outside the grid.
        """
        rolled, padded = self.rolled or self.padded, self.padded
        places, keys = [], []
        for axis, place in enumerate((queries // self.grid[1], queries % self.grid[1])):
            size, shift, length = self.size[axis], self.shift[axis], rolled[axis]
            place = (place - shift) % length
            key = (place // size * size)[:, None] + torch.arange(size, device=queries.device)
            places.append(place)
            keys.append(torch.where(key < length, (key + shift) % length, key))
        (row, column), (height, width) = places, self.size
        number = row // height * (padded[1] // width) + column // width
        return number, row % height * width + column % width, *keys


@dataclass
class OtherRecording(Recording):
    """What went into an attention layer of another library.

    Attributes:
        prefix: Number of tokens before those of the grid.
        windows: Where the tokens are, if the layer attends within windows.
    """

    prefix: int = 0
    windows: Windows | None = None

    @torch.no_grad()
    def maps(self, queries: Tensor) -> AttentionMaps:
        """The layer runs once more. What weights lack to a sum of 1 goes to the tokens before those of the grid."""
        found = []
        with _Catch(found.append):
            self.layer(*self.inputs, **self.keywords)
        (weights,) = found
        if self.windows is None:
            return dict(
                attention=AttentionMap.of_grid(weights[:, :, self.prefix + queries, self.prefix :], self.grid)
            )
        number, places, rows, columns = self.windows.locate(queries)
        of_images = weights.unflatten(0, (-1, self.windows.number))[:, number, :, places]  # (queries, B, heads, N)
        return dict(attention=AttentionMap(of_images.movedim(0, 2).unflatten(-1, self.windows.size), rows, columns))


class _Catch(TorchFunctionMode):
    """Gives `found` the weights, (B, heads, N, N), of every softmax over keys, and `rolled` what is rolled."""

    def __init__(self, found: Callable[[Tensor], None], rolled: Callable[..., None] | None = None) -> None:
        super().__init__()
        self.found, self.rolled = found, rolled

    def __torch_function__(self, function: Callable, types: list, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        if function is F.multi_head_attention_forward:
            output, weights = function(*args, **{**kwargs, 'need_weights': True, 'average_attn_weights': False})
            self.found(weights)
            return output, weights.mean(1)
        if function is F.scaled_dot_product_attention:
            self.found(_weights_of_product(*args, **kwargs))
        result = function(*args, **kwargs)
        if function in SOFTMAX and result.dim() == 4 and result.shape[-1] == result.shape[-2]:
            self.found(result)
        if function is torch.roll and self.rolled:
            self.rolled(*args, **kwargs)
        return result


def _weights_of_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *args,
    **kwargs,
) -> Tensor:
    """The weights of `F.scaled_dot_product_attention`: the output for values that are the unit vectors."""
    units = torch.eye(key.shape[-2], dtype=query.dtype, device=query.device).expand(*key.shape[:-1], -1)
    return F.scaled_dot_product_attention(query, key, units, attn_mask, 0.0, *args, **kwargs)


@dataclass
class _Call:
    """A module that runs, what it was called with, and how many softmaxes over keys ran in it."""

    module: nn.Module
    inputs: tuple
    keywords: dict
    number: int = 0


def _record_other_attention(backbone: nn.Module, x: Tensor) -> list[Recording]:
    """`record_attention` for a backbone that says nothing of its attention layers."""
    running = []  # the modules that run, the innermost last
    softmaxes = []  # for each softmax over keys the modules that ran, the shape of the weights, and the shift
    shift = None  # shift and size of the map, if one was rolled before

    def enter(module: nn.Module, inputs: tuple, keywords: dict) -> None:
        running.append(_Call(module, inputs, keywords))

    def leave(*_: object) -> None:
        running.pop()

    def found(weights: Tensor) -> None:
        calls = [call for call in running if not isinstance(call.module, nn.Softmax)]
        for call in calls:
            call.number += 1
        softmaxes.append((calls, weights.shape, shift))

    def rolled(input: Tensor, shifts: int | tuple[int, ...], dims: int | tuple[int, ...] = ()) -> None:
        # Swin rolls the map up and to the left before the attention, and back after it.
        nonlocal shift
        shifts = (shifts,) if isinstance(shifts, int) else shifts
        is_before = input.dim() == 4 and len(shifts) == 2 and max(shifts) <= 0
        shift = (tuple(-shift for shift in shifts), tuple(input.shape[1:3])) if is_before else None

    names = {module: name for name, module in backbone.named_modules()}
    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with _Catch(found, rolled):
            outputs = backbone(x)
    finally:
        for handle in handles:
            handle.remove()
    last = [tuple(output.shape[2:]) for output in outputs if isinstance(output, Tensor) and output.dim() == 4]
    last += [tuple(-(-length // stride) for length in x.shape[2:]) for stride in STRIDES]
    recordings = []
    for calls, shape, shifted in softmaxes:
        call, place = calls[-1], _place_tokens(calls, shape, shifted, len(x), last)
        # A layer with several softmaxes has none that is the attention alone.
        if place is not None and call.number == 1:
            grid, prefix, windows = place
            name = names[call.module]
            recordings.append(
                OtherRecording(name, call.module, call.inputs, call.keywords, grid, backbone, prefix, windows)
            )
    return recordings


def _place_tokens(
    calls: list[_Call], shape: torch.Size, shift: tuple | None, batch: int, last: list[Grid]
) -> tuple[Grid, int, Windows | None] | None:
    """The grid of queries and keys, the number of tokens before them, and their windows; None if they have no grid.

    `last` are the grids to try after those that the modules' arguments have; others are as in
    `_record_other_attention`.
    """
    number, num_tokens = shape[0] // batch, shape[-1]
    arguments = (*calls[-1].inputs, *calls[-1].keywords.values())
    tokens = next((value.shape for value in arguments if isinstance(value, Tensor)), torch.Size())
    # (B', N, C) or (B', h, w, C); (N, B', C) for some of `nn.MultiheadAttention`.
    if shape[0] % batch or num_tokens not in (tokens[1:-1].numel(), *tokens[:1]):
        return None
    candidates = [*_grids_of(reversed(calls)), *last]
    for size in _window_sizes(reversed(calls)):
        if size[0] * size[1] == num_tokens:
            for grid in candidates:
                windows = Windows(grid, size, *(shift or ()))
                if windows.number == number and (not shift or shift[1] in (grid, windows.padded)):
                    return grid, 0, windows
    for grid in candidates:
        prefix = num_tokens - grid[0] * grid[1]
        if number == 1 and 0 <= prefix <= MAX_PREFIX:
            return grid, prefix, None
    return None


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, int) for v in value)


def _grids_of(calls: Iterator[_Call]) -> Iterator[Grid]:
    """The grids that the arguments of modules may have: pairs of integers, and maps, (B, H, W, C) or (B, C, H, W)."""
    for call in calls:
        for value in (*call.inputs, *call.keywords.values()):
            if isinstance(value, Tensor) and value.dim() == 4:
                yield from (tuple(value.shape[1:3]), tuple(value.shape[2:]))
            elif _is_pair(value):
                yield tuple(value)


def _window_sizes(calls: Iterator[_Call]) -> Iterator[Grid]:
    """The windows' (height, width) that modules name."""
    for call in calls:
        size = getattr(call.module, 'window_size', None)
        if isinstance(size, int):
            yield size, size
        elif _is_pair(size):
            yield tuple(size)
