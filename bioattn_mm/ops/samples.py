"""Every operator with tensors to run it on, for `python -m bioattn_mm.ops --check` and the tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .add_norm import add_norm
from .aggregated_attention import aggregated_attention
from .cosine_attention import cosine_attention
from .deformable_attention import deformable_attention
from .gated_convolution import gated_convolution
from .gelu_pool import gelu_pool, gelu_pool_norm
from .log_cpb import log_cpb_table
from .peripheral_attention import peripheral_attention
from .relative_bias_attention import relative_bias_attention
from .sliding_window import sliding_window_av, sliding_window_qk
from .sparse_codes import sparse_codes

Sizes = dict[str, object]
Grid = tuple[int, int]
HALF = (torch.float16, torch.bfloat16)
ALL = (torch.float32, torch.float64, *HALF)
ON_CUDA = (torch.float32, *HALF)
ON_CPU_WITHOUT_FLOAT16 = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class Operator:
    """An operator to check: a row of `OPERATORS`.

    Args:
        run: The operator; it takes its tensors and `backend`.
        make: Its tensors for some sizes, random in float32 on the CPU.
        sizes: What is checked.
        dtypes: What is checked on the CPU, and on a GPU; no entry for a device that it is not compiled for.
        full_precision: Indices of those tensors that are float32 where the others are of half precision.
        constants: Indices of floating-point tensors that have no gradient.
        any_order: Devices on which the sums into gradients have no order.
    """

    run: Callable[..., Tensor]
    make: Callable[..., list[Tensor]]
    sizes: Sequence[Sizes]
    dtypes: dict[str, Sequence[torch.dtype]]
    full_precision: Sequence[int] = ()
    constants: Sequence[int] = ()
    any_order: Sequence[str] = ()

    def inputs(self, sizes: Sizes, device: str, dtype: torch.dtype) -> list[Tensor]:
        """The operator's tensors on a device, in a dtype."""
        full = torch.promote_types(dtype, torch.float32)
        return [
            t.to(device, (full if index in self.full_precision else dtype) if t.is_floating_point() else None)
            for index, t in enumerate(self.make(**sizes))
        ]

    def leaves(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Those of its tensors that have a gradient."""
        return [t for index, t in enumerate(inputs) if t.is_floating_point() and index not in self.constants]

    def values_and_gradients(self, inputs: Sequence[Tensor], backend: str) -> list[Tensor]:
        """The output, and the gradients of its sum with weights from -1 to 1."""
        inputs = [t.detach().clone() for t in inputs]
        leaves = [t.requires_grad_() for t in self.leaves(inputs)]
        output = self.run(*inputs, backend=backend)
        weights = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
        weights = weights.bfloat16().to(output.dtype)  # the same numbers in every dtype
        return [output.detach(), *torch.autograd.grad(output, leaves, weights)]


def randn(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape) for shape in shapes]


def make_aggregated_attention(
    batch: int = 2,
    grid: Grid = (5, 7),
    pooled_grid: Grid = (2, 3),
    heads: int = 2,
    channels: int = 8,
    window_size: int = 3,
) -> list[Tensor]:
    tokens, pooled, offsets = (batch, *grid, heads), (batch, *pooled_grid, heads, channels), window_size**2
    query, *others = randn(*[(*tokens, channels)] * 3, pooled, pooled, (heads, offsets))
    (bias,) = randn((heads, grid[0] + pooled_grid[0], grid[1], pooled_grid[1]))
    rows = torch.arange(grid[0])[:, None] + torch.arange(pooled_grid[0])
    return [query / channels**0.5, *others, bias, rows, *randn((*tokens, offsets))]


def make_cosine_attention(
    batch: int = 2,
    grid: Grid = (5, 7),
    pooled_grid: Grid = (2, 3),
    heads: int = 2,
    channels: int = 8,
    window_size: int = 3,
    summands: int = 1,
) -> list[Tensor]:
    offsets, lengths = window_size**2, list(zip(grid, pooled_grid, strict=True))
    # A row of the table for each distance between a token and a pooled one.
    rows, columns = (torch.arange(length)[:, None] + torch.arange(pooled) for length, pooled in lengths)
    tokens, token_bias = randn((heads, channels, offsets), (heads, offsets))
    tokens_of_grids = (batch, *grid, heads), (batch, *grid, 2, heads), (batch, *pooled_grid, 2, heads)
    projections, scale = randn(*((*shape, channels) for shape in tokens_of_grids)), torch.rand(heads) + 0.5
    biases = randn((heads, channels), (heads, offsets), (heads, *map(sum, lengths)))
    # Sums are of rows below one another.
    weights = torch.rand(*rows.shape, summands - 1)
    rows = (rows[..., None] + torch.arange(summands)) % sum(lengths[0])
    return [*projections, scale, *biases, rows, weights, columns, tokens / channels**0.5, token_bias]


def make_add_norm(batch: int = 2, grid: Grid = (5, 7), channels: int = 16) -> list[Tensor]:
    factor = 1.25 * (torch.arange(batch) > 0)  # the branch of the first image is dropped
    tokens, parameters = (torch.randn(2, batch, *grid, channels), torch.randn(3, channels))
    return [*tokens, *parameters[:2], factor, parameters[2]]


def channels_first(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A LayerNorm whose result has the channels first.

    Neighbours in a result get nearly the same gradient, and what all channels of a token share, the norm takes out.
    """
    return lambda *inputs, backend=None: run(*inputs, backend=backend).movedim(-1, 0)


def norm_of_sum(*inputs: Tensor, backend: str | None = None) -> Tensor:
    """The second result of `add_norm`."""
    x, branch, weight, bias, factor, branch_bias = inputs
    return add_norm(x, branch, weight, bias, 1e-6, factor, branch_bias, backend)[1]


def make_deformable_attention(
    batch: int = 2,
    shapes: Sequence[Grid] = ((5, 7), (3, 4), (1, 2)),
    queries: int = 9,
    heads: int = 2,
    channels: int = 8,
    points: int = 3,
) -> list[Tensor]:
    value, locations, weights = randn(
        (batch, sum(height * width for height, width in shapes), heads, channels),
        (batch, queries, heads, len(shapes), points, 2),
        (batch, queries, heads, len(shapes), points),
    )
    # Some are outside of the levels.
    return [value, torch.tensor(shapes), 0.5 + 0.4 * locations, weights]


def make_gated_convolution(batch: int = 2, grid: Grid = (5, 7), channels: int = 16) -> list[Tensor]:
    return [torch.randn(batch, *grid, 2 * channels), torch.randn(channels, 1, 3, 3) / 3, torch.randn(channels)]


def make_gelu_pool(batch: int = 2, height: int = 8, width: int = 12, channels: int = 24) -> list[Tensor]:
    return randn((batch, height, width, channels))


def make_gelu_pool_norm(batch: int = 2, height: int = 32, width: int = 48, channels: int = 24) -> list[Tensor]:
    return [torch.randn(batch, height, width, channels), *torch.randn(2, channels)]


def make_window(
    last: str, batch: int = 2, grid: Grid = (5, 7), heads: int = 2, channels: int = 8, window_size: int = 3
) -> list[Tensor]:
    """Query, key and bias of `sliding_window_qk`, or weights and value of `sliding_window_av`."""
    tokens, offsets = (batch, *grid, heads), window_size**2
    if last == 'value':
        return randn((*tokens, offsets), (*tokens, channels))
    query, *others = randn((*tokens, channels), (*tokens, channels), (heads, offsets))
    return [query / channels**0.5, *others]


def make_relative_bias_attention(
    batch: int = 2, grid: Grid = (5, 7), heads: int = 2, channels: int = 8
) -> list[Tensor]:
    return randn(*[(batch, *grid, heads, channels)] * 3, (heads, 2 * grid[0] - 1, 2 * grid[1] - 1))


def make_peripheral_attention(batch: int = 2, grid: Grid = (5, 7), heads: int = 4, channels: int = 8) -> list[Tensor]:
    hidden, tokens = 4 * heads, (batch, heads, grid[0] * grid[1], channels)
    position = (hidden, 2 * grid[0] + 1, 2 * grid[1] + 1), (hidden, *grid), (hidden, *grid)
    *before, conv_weight = randn(tokens, tokens, tokens, *position, (heads, hidden, 3, 3))
    return [*before, conv_weight / (9 * hidden) ** 0.5, *randn((heads,), (heads,), (heads,))]


def make_log_cpb_table(
    rows: int = 9, columns: int = 14, hidden: int = 16, heads: int = 3, mlps: int | None = None
) -> list[Tensor]:
    vertical, horizontal = (torch.linspace(-1.5, 1.5, length) for length in (rows, columns))
    stacked = () if mlps is None else (mlps,)
    shapes = (*stacked, hidden, 2), (*stacked, hidden), (*stacked, heads, hidden), (*stacked, heads)
    hidden_weight, hidden_bias, weight, bias = randn(*shapes)
    return [vertical, horizontal, hidden_weight, hidden_bias, weight / hidden**0.5, bias]


def make_sparse_codes(batch: int = 4, states: int = 10, channels: int = 8) -> list[Tensor]:
    dictionary, value = randn((batch, 3 * states, states), (batch, 3 * states, channels))
    dictionary = dictionary / dictionary.norm(dim=1, keepdim=True)
    gram, target = dictionary.mT @ dictionary, dictionary.mT @ value
    return [gram, target, 1 / (1 + gram.abs().sum((1, 2), keepdim=True)), torch.tensor([0.3])]


WINDOW_SIZES = [
    dict(),
    dict(window_size=1, channels=48),
    dict(window_size=7, channels=40, grid=(8, 9)),
    dict(window_size=9, channels=64, grid=(3, 14)),
    dict(batch=1, grid=(3, 70), heads=1),
    dict(batch=0),
    dict(grid=(0, 7)),
]
OF_TWO_GRIDS = [
    dict(),
    dict(grid=(17, 19), pooled_grid=(5, 9), channels=24),
    dict(grid=(3, 70), pooled_grid=(1, 40), heads=1),
    dict(window_size=1, channels=48),
    dict(batch=1, grid=(56, 56), pooled_grid=(7, 7), heads=3, channels=24),
    dict(grid=(1, 1), pooled_grid=(1, 1)),
    dict(batch=0),
]

OPERATORS = {
    'add_norm': Operator(
        channels_first(norm_of_sum),
        make_add_norm,
        [dict(), dict(grid=(1, 1), channels=34), dict(grid=(3, 70), channels=576), dict(batch=0)],
        dtypes=dict(cpu=ON_CPU_WITHOUT_FLOAT16, cuda=ON_CUDA),
        full_precision=(4,),
        constants=(4,),
    ),
    'aggregated_attention': Operator(
        aggregated_attention,
        make_aggregated_attention,
        [
            *OF_TWO_GRIDS,
            dict(grid=(4, 5), pooled_grid=(9, 8), channels=16),
            dict(window_size=7, channels=40),
            dict(window_size=9, channels=64),
            dict(batch=1, grid=(2, 3), pooled_grid=(42, 42), heads=1),
            dict(batch=32, grid=(6, 9), heads=16),
            dict(batch=1, grid=(32, 32), pooled_grid=(16, 16), heads=12, channels=24),
            dict(grid=(0, 7)),
        ],
        dtypes=dict(cpu=ALL, cuda=ON_CUDA),
    ),
    'cosine_attention': Operator(
        cosine_attention,
        make_cosine_attention,
        [
            *OF_TWO_GRIDS,
            dict(window_size=5, channels=32),
            *(dict(grid=(17, 19), pooled_grid=(5, 9), channels=24, summands=number) for number in (2, 4)),
            # More tokens than the blocks on a GPU take at once.
            dict(batch=1, grid=(190, 190), heads=1),
        ],
        dtypes=dict(cpu=ALL, cuda=ON_CUDA),
        full_precision=(3, 4, 5, 6, 8, 10, 11),
        constants=(8,),
    ),
    'deformable_attention': Operator(
        deformable_attention,
        make_deformable_attention,
        [
            dict(),
            dict(shapes=((13, 20), (7, 10), (4, 5), (2, 3)), queries=300, heads=8, channels=32, points=4),
            dict(shapes=((3, 4),), channels=37),
            dict(batch=0),
            dict(queries=0),
        ],
        dtypes=dict(cpu=ALL, cuda=ALL),
        full_precision=(2, 3),
        any_order=('cuda',),
    ),
    'gated_convolution': Operator(
        gated_convolution,
        make_gated_convolution,
        [dict(), dict(grid=(1, 1)), dict(grid=(3, 70), channels=48), dict(batch=0)],
        dtypes=dict(cpu=ON_CPU_WITHOUT_FLOAT16, cuda=ON_CUDA),
        full_precision=(1, 2),
    ),
    'gelu_pool': Operator(
        partial(gelu_pool, grid=(3, 4)),
        make_gelu_pool,
        [dict(), dict(height=1, width=1), dict(channels=72), dict(channels=17), dict(batch=0)],
        dtypes=dict(cpu=ON_CPU_WITHOUT_FLOAT16),
    ),
    'gelu_pool_norm': Operator(
        channels_first(partial(gelu_pool_norm, grid=(16, 16), eps=1e-6)),
        make_gelu_pool_norm,
        [dict(), dict(height=16, width=16, channels=34), dict(channels=288), dict(batch=0)],
        dtypes=dict(cuda=ON_CUDA),
    ),
    'sliding_window_qk': Operator(
        sliding_window_qk, partial(make_window, 'bias'), WINDOW_SIZES, dict(cpu=ALL, cuda=ALL)
    ),
    'sliding_window_av': Operator(
        sliding_window_av, partial(make_window, 'value'), WINDOW_SIZES, dict(cpu=ALL, cuda=ALL)
    ),
    'relative_bias_attention': Operator(
        relative_bias_attention,
        make_relative_bias_attention,
        [dict(), dict(grid=(1, 1)), dict(grid=(17, 19), channels=24), dict(batch=0)],
        dtypes=dict(cpu=ALL),
        full_precision=(3,),
    ),
    'peripheral_attention': Operator(
        peripheral_attention,
        make_peripheral_attention,
        [dict(), dict(grid=(2, 3), heads=3), dict(grid=(9, 4), heads=8, channels=16), dict(batch=0)],
        dtypes=dict(cpu=ALL),
        full_precision=range(3, 10),
    ),
    'log_cpb_table': Operator(
        log_cpb_table,
        make_log_cpb_table,
        [
            dict(),
            dict(rows=1, columns=1),
            dict(rows=63, columns=32 * 7, hidden=512),
            dict(rows=70, columns=13, hidden=65, heads=24),
            dict(mlps=3),
        ],
        dtypes=dict.fromkeys(('cpu', 'cuda'), (torch.float32, torch.float64)),
        constants=range(2),
    ),
    'sparse_codes': Operator(
        partial(sparse_codes, num_steps=3),
        make_sparse_codes,
        [dict(), dict(batch=1, states=1, channels=1), dict(states=70, channels=37), dict(batch=0)],
        dtypes=dict.fromkeys(('cpu', 'cuda'), (torch.float32, torch.float64)),
    ),
}
