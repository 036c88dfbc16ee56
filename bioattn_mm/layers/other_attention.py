"""Attention of other libraries: the weights are caught where a layer's own forward computes them.

So it does not matter what a layer does to queries, keys and logits before: scaling, norms, position biases, rotary
embeddings, masks. `recording.record_attention` says which layers take part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .attention_maps import AttentionMap, AttentionMaps, Recording
from .grid import Grid
from .windows import Windows

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
# Class token, token of distillation, registers: a sequence with more tokens before those of a grid has another grid.
MAX_PREFIX = 16
# Strides of the grids that are tried last.
STRIDES = (4, 8, 16, 32, 64, 7, 14)


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
        """The layer's weights, under the name 'attention', for some of its tokens.

        The layer runs once more, with the weights of all tokens. What they lack to a sum of 1 goes to the tokens
        before those of the grid.

        Args:
            queries: Indices of the tokens in the row-major order of the grid, int64 (queries,).
        """
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

    def head_parameters(self) -> dict[str, list[float]]:
        return {}


class _Catch(TorchFunctionMode):
    """Hands over the weights of every softmax over keys that runs while it is active.

    Args:
        found: Takes the weights, (B, heads, N, N).
        rolled: Takes what `torch.roll` is called with.
    """

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
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights of `F.scaled_dot_product_attention`: the output for values that are the unit vectors."""
    units = torch.eye(key.shape[-2], dtype=query.dtype, device=query.device).expand(*key.shape[:-1], -1)
    return F.scaled_dot_product_attention(
        query, key, units, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


@dataclass
class _Call:
    """A module that is running.

    Attributes:
        module: The module.
        inputs: Positional arguments of its forward.
        keywords: Keyword arguments.
        number: How many softmaxes over keys ran in it.
    """

    module: nn.Module
    inputs: tuple
    keywords: dict
    number: int = 0


@dataclass
class _Run:
    """What happens while a backbone runs.

    Attributes:
        calls: The modules that are running, the innermost last.
        softmaxes: For each softmax over keys the modules that were running and the shape of the weights, and shift
            and size of the map if one was rolled before.
    """

    calls: list[_Call] = field(default_factory=list)
    softmaxes: list[tuple[list[_Call], torch.Size, tuple | None]] = field(default_factory=list)
    shift: tuple | None = None

    def enter(self, module: nn.Module, inputs: tuple, keywords: dict) -> None:
        self.calls.append(_Call(module, inputs, keywords))

    def leave(self, *args: object) -> None:
        self.calls.pop()

    def found(self, weights: Tensor) -> None:
        calls = [call for call in self.calls if not isinstance(call.module, nn.Softmax)]
        for call in calls:
            call.number += 1
        self.softmaxes.append((calls, weights.shape, self.shift))
        self.shift = None

    def rolled(self, input: Tensor, shifts: int | tuple[int, ...], dims: int | tuple[int, ...] = ()) -> None:
        # Swin rolls the map up and to the left before the attention, and back after it.
        shifts = (shifts,) if isinstance(shifts, int) else shifts
        is_before = input.dim() == 4 and len(shifts) == 2 and max(shifts) <= 0
        self.shift = (tuple(-shift for shift in shifts), tuple(input.shape[1:3])) if is_before else None


@torch.no_grad()
def record_other_attention(backbone: nn.Module, x: Tensor) -> list[Recording]:
    """`record_attention` for a backbone that says nothing of its attention layers."""
    run = _Run()
    names = {module: name for name, module in backbone.named_modules()}
    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(run.enter, with_kwargs=True))
        handles.append(module.register_forward_hook(run.leave, always_call=True))
    try:
        with _Catch(run.found, run.rolled):
            outputs = backbone(x)
    finally:
        for handle in handles:
            handle.remove()
    last = [tuple(output.shape[2:]) for output in outputs if isinstance(output, Tensor) and output.dim() == 4]
    last += [tuple(-(-length // stride) for length in x.shape[2:]) for stride in STRIDES]
    recordings = []
    for calls, shape, shift in run.softmaxes:
        call = calls[-1]
        place = _place_tokens(calls, shape, shift, len(x), last)
        # A layer with several softmaxes has none that is the attention alone.
        if place is not None and call.number == 1:
            grid, prefix, windows = place
            recordings.append(
                OtherRecording(
                    names[call.module], call.module, call.inputs, call.keywords, grid, backbone, prefix, windows
                )
            )
    return recordings


def _place_tokens(
    calls: list[_Call], shape: torch.Size, shift: tuple | None, batch: int, last: list[Grid]
) -> tuple[Grid, int, Windows | None] | None:
    """The grid whose tokens are queries and keys, the tokens before them, and the windows that they are in.

    Args:
        calls: The modules that were running.
        shape: (B', heads, N, N) of the weights.
        shift: Shift and size of the map if it was rolled.
        batch: Number of images.
        last: Grids to try after those that the modules' arguments have.

    Returns:
        None if these are no tokens of a grid, but channels, or pooled.
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


def _grids_of(calls: Iterator[_Call]) -> Iterator[Grid]:
    """The grids that the arguments of modules may have: pairs of integers, and maps, (B, H, W, C) or (B, C, H, W)."""
    for call in calls:
        for value in (*call.inputs, *call.keywords.values()):
            if isinstance(value, Tensor) and value.dim() == 4:
                yield from (tuple(value.shape[1:3]), tuple(value.shape[2:]))
            elif isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, int) for v in value):
                yield tuple(value)


def _window_sizes(calls: Iterator[_Call]) -> Iterator[Grid]:
    """The windows' (height, width) that modules name."""
    for call in calls:
        size = getattr(call.module, 'window_size', None)
        if isinstance(size, int):
            yield size, size
        elif isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(length, int) for length in size):
            yield tuple(size)
