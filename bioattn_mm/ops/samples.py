"""Every operator with tensors to run it on, for the report of `python -m bioattn_mm.ops --check` and the tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .add_norm import add_norm
from .aggregated_attention import aggregated_attention
from .cosine_attention import cosine_attention
from .gated_convolution import gated_convolution
from .gelu_pool import gelu_pool, gelu_pool_norm
from .log_cpb import log_cpb_table
from .peripheral_attention import peripheral_attention
from .relative_bias_attention import relative_bias_attention
from .sliding_window import sliding_window_av, sliding_window_qk

Sizes = dict[str, object]


@dataclass(frozen=True)
class Operator:
    """An operator to check: a row of `OPERATORS`.

    Args:
        run: The operator; it takes its tensors and `backend`.
        make: Its tensors for some sizes, random in float32 on the CPU.
        sizes: What is checked.
        timed: Name and sizes of what is timed, on the CPU and on a GPU.
        dtypes: What is checked on the CPU, and on a GPU; no entry for a device that it is not compiled for.
        full_precision: Places of those tensors that are float32 where the others are of half precision.
        constants: Places of floating-point tensors that have no gradient.
    """

    run: Callable[..., Tensor]
    make: Callable[..., list[Tensor]]
    sizes: Sequence[Sizes]
    timed: dict[str, tuple[str, Sizes]]
    dtypes: dict[str, Sequence[torch.dtype]]
    full_precision: Sequence[int] = ()
    constants: Sequence[int] = ()

    def inputs(self, sizes: Sizes, device: str, dtype: torch.dtype) -> list[Tensor]:
        """The operator's tensors on a device, in a dtype."""
        full = torch.promote_types(dtype, torch.float32)
        return [
            t.to(device, (full if place in self.full_precision else dtype) if t.is_floating_point() else None)
            for place, t in enumerate(self.make(**sizes))
        ]

    def leaves(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Those of its tensors that have a gradient."""
        return [t for place, t in enumerate(inputs) if t.is_floating_point() and place not in self.constants]

    def values_and_gradients(self, inputs: Sequence[Tensor], backend: str) -> list[Tensor]:
        """The output, and the gradients of its sum with weights from -1 to 1."""
        inputs = [t.detach().clone() for t in inputs]
        leaves = [t.requires_grad_() for t in self.leaves(inputs)]
        output = self.run(*inputs, backend=backend)
        weights = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
        weights = weights.bfloat16().to(output.dtype)  # the same numbers in every dtype
        return [output.detach(), *torch.autograd.grad(output, leaves, weights)]


def make_aggregated_attention(
    batch: int = 2,
    grid: tuple[int, int] = (5, 7),
    pooled_grid: tuple[int, int] = (2, 3),
    heads: int = 2,
    channels: int = 8,
    window_size: int = 3,
) -> list[Tensor]:
    tokens, pooled = (batch, *grid, heads), (batch, *pooled_grid, heads)
    bias_rows = grid[0] + pooled_grid[0]
    rows = torch.arange(grid[0])[:, None] + torch.arange(pooled_grid[0])
    return [
        torch.randn(*tokens, channels) / channels**0.5,
        torch.randn(*tokens, channels),
        torch.randn(*tokens, channels),
        torch.randn(*pooled, channels),
        torch.randn(*pooled, channels),
        torch.randn(heads, window_size**2),
        torch.randn(heads, bias_rows, grid[1], pooled_grid[1]),
        rows,
        torch.randn(*tokens, window_size**2),
    ]


def make_cosine_attention(
    batch: int = 2,
    grid: tuple[int, int] = (5, 7),
    pooled_grid: tuple[int, int] = (2, 3),
    heads: int = 2,
    channels: int = 8,
    window_size: int = 3,
) -> list[Tensor]:
    offsets = window_size**2
    sizes = [(length, pooled) for length, pooled in zip(grid, pooled_grid, strict=True)]
    # A row of the table for each distance between a token and a pooled one.
    rows, columns = (torch.arange(length)[:, None] + torch.arange(pooled) for length, pooled in sizes)
    return [
        torch.randn(batch, *grid, heads, channels),
        torch.randn(batch, *grid, 2, heads, channels),
        torch.randn(batch, *pooled_grid, 2, heads, channels),
        torch.rand(heads) + 0.5,
        torch.randn(heads, channels),
        torch.randn(heads, offsets),
        torch.randn(heads, *(length + pooled for length, pooled in sizes)),
        rows,
        columns,
        torch.randn(heads, channels, offsets) / channels**0.5,
        torch.randn(heads, offsets),
    ]


def make_add_norm(batch: int = 2, grid: tuple[int, int] = (5, 7), channels: int = 16) -> list[Tensor]:
    factor = 1.25 * (torch.arange(batch) > 0)  # the branch of the first image is dropped
    tokens, parameters = (torch.randn(2, batch, *grid, channels), torch.randn(3, channels))
    return [*tokens, *parameters[:2], factor, parameters[2]]


def channels_first(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A LayerNorm whose result has the channels first.

    Neighbours in a result get nearly the same gradient, and what all channels of a token share, the norm takes out.
    """
    return lambda *inputs, backend=None: run(*inputs, backend=backend).movedim(-1, 0)


def norm_of_sum(
    x: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor,
    factor: Tensor,
    branch_bias: Tensor,
    backend: str | None = None,
) -> Tensor:
    """The second result of `add_norm`."""
    return add_norm(x, branch, weight, bias, 1e-6, factor, branch_bias, backend)[1]


def make_gated_convolution(batch: int = 2, grid: tuple[int, int] = (5, 7), channels: int = 16) -> list[Tensor]:
    return [torch.randn(batch, *grid, 2 * channels), torch.randn(channels, 1, 3, 3) / 3, torch.randn(channels)]


def make_gelu_pool(batch: int = 2, height: int = 8, width: int = 12, channels: int = 24) -> list[Tensor]:
    return [torch.randn(batch, height, width, channels)]


def make_gelu_pool_norm(batch: int = 2, height: int = 32, width: int = 48, channels: int = 24) -> list[Tensor]:
    return [torch.randn(batch, height, width, channels), *torch.randn(3, channels)]


def make_window(
    last: str, batch: int = 2, grid: tuple[int, int] = (5, 7), heads: int = 2, channels: int = 8, window_size: int = 3
) -> list[Tensor]:
    """Query, key and bias of `sliding_window_qk`, or weights and value of `sliding_window_av`."""
    tokens = (batch, *grid, heads)
    if last == 'bias':
        query, key = (torch.randn(*tokens, channels) for _ in range(2))
        return [query / channels**0.5, key, torch.randn(heads, window_size**2)]
    return [torch.randn(*tokens, window_size**2), torch.randn(*tokens, channels)]


def make_relative_bias_attention(
    batch: int = 2, grid: tuple[int, int] = (5, 7), heads: int = 2, channels: int = 8
) -> list[Tensor]:
    query, key, value = (torch.randn(batch, *grid, heads, channels) for _ in range(3))
    return [query, key, value, torch.randn(heads, 2 * grid[0] - 1, 2 * grid[1] - 1)]


def make_peripheral_attention(
    batch: int = 2, grid: tuple[int, int] = (5, 7), heads: int = 4, channels: int = 8
) -> list[Tensor]:
    query, key, value = (torch.randn(batch, heads, grid[0] * grid[1], channels) for _ in range(3))
    hidden = 4 * heads
    return [
        query,
        key,
        value,
        torch.randn(hidden, 2 * grid[0] + 1, 2 * grid[1] + 1),
        torch.randn(hidden, *grid),
        torch.randn(hidden, *grid),
        torch.randn(heads, hidden, 3, 3) / (9 * hidden) ** 0.5,
        torch.randn(heads),
        torch.randn(heads),
        torch.randn(heads),
    ]


def make_log_cpb_table(
    rows: int = 9, columns: int = 14, hidden: int = 16, heads: int = 3, mlps: int | None = None
) -> list[Tensor]:
    vertical, horizontal = (torch.linspace(-1.5, 1.5, length) for length in (rows, columns))
    shapes = ((hidden, 2), (hidden,), (heads, hidden), (heads,))
    stacked = () if mlps is None else (mlps,)
    hidden_weight, hidden_bias, weight, bias = (torch.randn(*stacked, *shape) for shape in shapes)
    return [vertical, horizontal, hidden_weight, hidden_bias, weight / hidden**0.5, bias]


WINDOW_SIZES = [
    dict(),
    dict(window_size=1, channels=48),
    dict(window_size=5, channels=32),
    dict(window_size=7, channels=40, grid=(8, 9)),
    dict(window_size=9, channels=64, grid=(3, 14)),
    dict(batch=1, grid=(3, 70), heads=1),
    dict(batch=1, grid=(56, 56), heads=3, channels=24),
    dict(batch=0),
    dict(grid=(0, 7)),
]
WINDOW_TIMED = {
    'cpu': ('TransNeXt-Tiny, stage 1 at 224 x 224', dict(batch=1, grid=(56, 56), heads=3, channels=24)),
    'cuda': ('TransNeXt-Tiny, stage 1 at 512 x 512, 8 images', dict(batch=8, grid=(128, 128), heads=3, channels=24)),
}
HALF = (torch.float16, torch.bfloat16)
WINDOW_DTYPES = {'cpu': (torch.float32, torch.float64, *HALF), 'cuda': (torch.float32, torch.float64, *HALF)}

OPERATORS = {
    'add_norm': Operator(
        run=channels_first(norm_of_sum),
        make=make_add_norm,
        sizes=[
            dict(),
            dict(grid=(1, 1), channels=34),
            dict(grid=(3, 70), channels=576),
            dict(batch=1, grid=(56, 56), channels=72),
            dict(batch=0),
        ],
        timed={
            'cuda': ('TransNeXt-Tiny, stage 1 at 512 x 512, 8 images', dict(batch=8, grid=(128, 128), channels=72))
        },
        dtypes={'cuda': (torch.float32, *HALF)},
        full_precision=(4,),
        constants=(4,),
    ),
    'aggregated_attention': Operator(
        run=aggregated_attention,
        make=make_aggregated_attention,
        sizes=[
            dict(),
            dict(grid=(17, 19), pooled_grid=(5, 9), channels=24),
            dict(grid=(3, 70), pooled_grid=(1, 40), heads=1),
            dict(grid=(4, 5), pooled_grid=(9, 8), channels=16),
            dict(window_size=1, channels=48),
            dict(window_size=5, channels=32),
            dict(window_size=7, channels=40),
            dict(window_size=9, channels=64),
            dict(batch=1, grid=(2, 3), pooled_grid=(42, 42), heads=1),
            dict(batch=32, grid=(6, 9), heads=16),
            dict(batch=1, grid=(56, 56), pooled_grid=(7, 7), heads=3, channels=24),
            dict(batch=1, grid=(32, 32), pooled_grid=(16, 16), heads=12, channels=24),
            dict(grid=(1, 1), pooled_grid=(1, 1)),
            dict(batch=0),
            dict(grid=(0, 7)),
        ],
        timed={
            device: (name, sizes | dict(pooled_grid=(7, 7) if device == 'cpu' else (16, 16)))
            for device, (name, sizes) in WINDOW_TIMED.items()
        },
        dtypes={'cpu': (torch.float32, torch.float64, *HALF), 'cuda': (torch.float32, *HALF)},
    ),
    'cosine_attention': Operator(
        run=cosine_attention,
        make=make_cosine_attention,
        sizes=[
            dict(),
            dict(grid=(17, 19), pooled_grid=(5, 9), channels=24),
            dict(grid=(3, 70), pooled_grid=(1, 40), heads=1),
            dict(window_size=1, channels=48),
            dict(window_size=5, channels=32),
            dict(batch=1, grid=(56, 56), pooled_grid=(7, 7), heads=3, channels=24),
            # More tokens than the blocks on a GPU take at once.
            dict(batch=1, grid=(190, 190), heads=1),
            dict(grid=(1, 1), pooled_grid=(1, 1)),
            dict(batch=0),
        ],
        timed={
            device: (name, sizes | dict(pooled_grid=(7, 7) if device == 'cpu' else (16, 16)))
            for device, (name, sizes) in WINDOW_TIMED.items()
        },
        dtypes={'cpu': (torch.float32, torch.float64, *HALF), 'cuda': (torch.float32, *HALF)},
        full_precision=(3, 4, 5, 6, 9, 10),
    ),
    'gated_convolution': Operator(
        run=gated_convolution,
        make=make_gated_convolution,
        sizes=[
            dict(),
            dict(grid=(1, 1)),
            dict(grid=(3, 70), channels=48),
            dict(batch=1, grid=(56, 56), channels=192),
            dict(batch=0),
        ],
        timed={
            'cpu': ('TransNeXt-Tiny, stage 1 at 224 x 224', dict(batch=1, grid=(56, 56), channels=384)),
            'cuda': ('TransNeXt-Tiny, stage 1 at 512 x 512, 8 images', dict(batch=8, grid=(128, 128), channels=384)),
        },
        dtypes={'cpu': (torch.float32, torch.float64, torch.bfloat16), 'cuda': (torch.float32, *HALF)},
        full_precision=(1, 2),
    ),
    'gelu_pool': Operator(
        run=partial(gelu_pool, grid=(3, 4)),
        make=make_gelu_pool,
        sizes=[dict(), dict(height=1, width=1), dict(channels=72), dict(channels=17), dict(batch=0)],
        timed={
            'cpu': (
                'TransNeXt-Tiny, stage 1 at 512 x 512, to 3 x 4',
                dict(batch=1, height=128, width=128, channels=72),
            )
        },
        dtypes={'cpu': (torch.float32, torch.float64, torch.bfloat16)},
    ),
    'gelu_pool_norm': Operator(
        run=channels_first(partial(gelu_pool_norm, grid=(16, 16), eps=1e-6)),
        make=make_gelu_pool_norm,
        sizes=[dict(), dict(height=16, width=16, channels=34), dict(channels=288), dict(batch=0)],
        timed={
            'cuda': (
                'TransNeXt-Tiny, stage 1 at 512 x 512, 8 images',
                dict(batch=8, height=128, width=128, channels=72),
            )
        },
        dtypes={'cuda': (torch.float32, *HALF)},
    ),
    'sliding_window_qk': Operator(
        run=sliding_window_qk,
        make=partial(make_window, 'bias'),
        sizes=WINDOW_SIZES,
        timed=WINDOW_TIMED,
        dtypes=WINDOW_DTYPES,
    ),
    'sliding_window_av': Operator(
        run=sliding_window_av,
        make=partial(make_window, 'value'),
        sizes=WINDOW_SIZES,
        timed=WINDOW_TIMED,
        dtypes=WINDOW_DTYPES,
    ),
    'relative_bias_attention': Operator(
        run=relative_bias_attention,
        make=make_relative_bias_attention,
        sizes=[
            dict(),
            dict(grid=(1, 1)),
            dict(grid=(17, 19), channels=24),
            dict(batch=1, grid=(14, 14), heads=6, channels=64),
            dict(batch=0),
        ],
        timed={'cpu': ('ViT-small at 224 x 224', dict(batch=1, grid=(14, 14), heads=6, channels=64))},
        dtypes={'cpu': (torch.float32, torch.float64, *HALF)},
        full_precision=(3,),
    ),
    'peripheral_attention': Operator(
        run=peripheral_attention,
        make=make_peripheral_attention,
        sizes=[
            dict(),
            dict(grid=(2, 3), heads=3),
            dict(grid=(9, 4), heads=8, channels=16),
            dict(batch=1, grid=(14, 14), channels=32),
            dict(batch=0),
        ],
        timed={'cpu': ('PerViT-Tiny at 224 x 224', dict(batch=1, grid=(14, 14), channels=32))},
        dtypes={'cpu': (torch.float32, torch.float64, *HALF)},
        full_precision=range(3, 10),
    ),
    'log_cpb_table': Operator(
        run=log_cpb_table,
        make=make_log_cpb_table,
        sizes=[
            dict(),
            dict(rows=1, columns=1),
            dict(rows=63, columns=32 * 7, hidden=512),
            dict(rows=70, columns=13, hidden=65, heads=24),
            dict(mlps=3),
        ],
        timed={
            'cpu': ('stage 1 at 224 x 224', dict(rows=104, columns=104, hidden=512)),
            'cuda': ('stage 1 at 512 x 512', dict(rows=248, columns=248, hidden=512)),
        },
        dtypes={'cpu': (torch.float32, torch.float64), 'cuda': (torch.float32, torch.float64)},
        constants=range(2),
    ),
}
