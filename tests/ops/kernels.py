"""The operators as their kernels are tested: with tensors, tolerances and places of their own."""

import inspect
import random
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bioattn_mm.ops import (
    AggregatedAttentionInputs,
    add_norm,
    cosine_attention,
    gated_convolution,
    gelu_pool,
    gelu_pool_norm,
    relative_bias_attention,
)
from bioattn_mm.ops.check import relative_error
from bioattn_mm.ops.samples import (
    OPERATORS,
    Operator,
    make_add_norm,
    make_gated_convolution,
    make_gelu_pool,
    make_relative_bias_attention,
)
from tests.ops.conftest import Place

EPS = 1e-3
CosineAttentionInputs = namedtuple(
    'CosineAttentionInputs', [name for name in inspect.signature(cosine_attention).parameters if name != 'backend']
)


def aggregated_attention_inputs(
    rows: int = 4, dtype: torch.dtype = torch.float64, **sizes: object
) -> AggregatedAttentionInputs:
    """Pairs of a query row and a pooled row have one of so many rows of the position bias, drawn at random."""
    inputs = AggregatedAttentionInputs(*OPERATORS['aggregated_attention'].inputs(sizes, 'cpu', dtype))
    heads, _, width, pooled_width = inputs.pooled_bias.shape
    return inputs._replace(
        pooled_bias=torch.randn(heads, rows, width, pooled_width).to(dtype),
        pooled_bias_rows=torch.randint(rows, inputs.pooled_bias_rows.shape),
    )


def cosine_attention_inputs(
    consecutive: bool = False, dtype: torch.dtype = torch.float64, **sizes: object
) -> CosineAttentionInputs:
    """Rows and columns of the position bias are random; `consecutive`: the next query has the next column."""
    inputs = CosineAttentionInputs(*OPERATORS['cosine_attention'].inputs(sizes, 'cpu', dtype))
    heads, (width, pooled_width) = len(inputs.scale), inputs.pooled_bias_columns.shape
    rows, columns = 4, width + 6
    starts = torch.randint(columns - width + 1, (pooled_width,))
    return inputs._replace(
        pooled_bias=torch.randn(heads, rows, columns).to(inputs.scale.dtype),
        pooled_bias_rows=torch.randint(rows, inputs.pooled_bias_rows.shape),
        pooled_bias_columns=torch.arange(width)[:, None] + starts
        if consecutive
        else torch.randint(columns, (width, pooled_width)),
    )


def relative_bias_of_summed_rows(grid: tuple[int, int] = (5, 7), summands: int = 4, **sizes: int) -> list[Tensor]:
    tokens, (height, width) = make_relative_bias_attention(grid=grid, **sizes)[:3], grid
    weights = torch.rand(height, height, summands - 1)
    rows, columns = torch.randint(6, (height, height, summands)), torch.randint(9, (width, width))
    return [*tokens, torch.randn(tokens[0].shape[3], 6, 9), rows, weights, columns]


def to_double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def both_results(*inputs: Tensor, backend: str) -> Tensor:
    x, branch, weight, bias, factor, branch_bias = (*inputs, None, None)[:6]
    return torch.stack(add_norm(x, branch, weight, bias, EPS, factor, branch_bias, backend))


def pool_norm(grid: tuple[int, int]) -> Operator:
    return replace(OPERATORS['gelu_pool_norm'], run=partial(gelu_pool_norm, grid=grid, eps=EPS))


KERNELS = OPERATORS | {
    **{
        f'{name}_attention': replace(OPERATORS[f'{name}_attention'], make=partial(make, dtype=torch.float32))
        for name, make in (('aggregated', aggregated_attention_inputs), ('cosine', cosine_attention_inputs))
    },
    'gate after a linear layer': replace(
        OPERATORS['gated_convolution'],
        run=lambda *inputs, backend: gated_convolution(*inputs[:3], x_bias=inputs[3], backend=backend),
        make=lambda **sizes: [*(inputs := make_gated_convolution(**sizes)), torch.randn(inputs[0].shape[-1])],
        full_precision=(1, 2, 3),
    ),
    'add_norm, both results': replace(OPERATORS['add_norm'], run=both_results),
    'add_norm of two tensors': replace(
        OPERATORS['add_norm'],
        run=both_results,
        make=lambda **sizes: make_add_norm(**sizes)[:4],
        full_precision=(),
        constants=(),
    ),
    'relative_bias_attention with a scale': replace(
        OPERATORS['relative_bias_attention'], run=partial(relative_bias_attention, scale=0.7)
    ),
    'relative_bias_attention of summed rows': replace(
        OPERATORS['relative_bias_attention'],
        run=lambda *inputs, backend: relative_bias_attention(*inputs[:4], pairs=inputs[4:], backend=backend),
        make=relative_bias_of_summed_rows,
        full_precision=(3, 5),
        constants=(5,),
    ),
    **{
        f'gelu_pool to {h} x {w}': replace(
            OPERATORS['gelu_pool'],
            run=partial(gelu_pool, grid=(h, w)),
            make=lambda **sizes: [2 * make_gelu_pool(**sizes)[0]],
        )
        for h, w in ((4, 3), (3, 4), (5, 3), (7, 5), (1, 1))
    },
    'gelu_pool_norm': pool_norm((2, 3)),
    **{f'gelu_pool_norm to {h} x {w}': pool_norm((h, w)) for h, w in ((1, 1), (2, 2), (4, 9))},
}
# Errors of attention and of the others, as fractions of the largest number of a result.
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.float16: (5e-3, 4e-3), torch.bfloat16: (4e-2, 2e-2)}
SMALLEST_SCALE = dict(cosine=0.1, peripheral=0.1, relative=0.1, norm=1, gelu_pool=1)


def check(
    name: str,
    inputs: Sequence[Tensor],
    place: Place,
    tolerance: float | None = None,
    formula: Callable[..., Tensor] | None = None,
) -> None:
    """Values and gradients are those of a formula in float64, by default PyTorch's."""
    inputs, operator = [tensor.to(place.device) for tensor in inputs], KERNELS[name]
    allowed = tolerance or TOLERANCE.get(inputs[0].dtype, (1e-10, 1e-12))['attention' not in name]
    # Sums in which large terms cancel are near 0.
    smallest = next((scale for part, scale in SMALLEST_SCALE.items() if part in name), 0)
    exact = replace(operator, run=formula or operator.run)
    wanted = exact.values_and_gradients([*map(to_double, inputs)], 'reference')
    dtypes = [tensor.dtype for tensor in (inputs[0], *operator.leaves(inputs))]
    results = zip(operator.values_and_gradients(inputs, place.backend), wanted, dtypes, strict=True)
    for number, (result, want, dtype) in enumerate(results):
        assert result.dtype == dtype
        assert (error := relative_error(result, want, smallest)) <= allowed, f'result {number} differs by {error}'


def inputs_of(name: str, dtype: torch.dtype = torch.float32, **sizes: object) -> list[Tensor]:
    return KERNELS[name].inputs(sizes, 'cpu', dtype)


# The same numbers elsewhere in memory.


def transposed(draw: random.Random, tensor: Tensor) -> Tensor:
    axes = draw.sample(range(tensor.dim()), 2) if tensor.dim() > 1 else (0, 0)
    return tensor.transpose(*axes).contiguous().transpose(*axes) if tensor.dim() else tensor


def sliced(draw: random.Random, tensor: Tensor) -> Tensor:
    axis = draw.randrange(max(tensor.dim(), 1))
    step = draw.choice((2, 3))
    return tensor.repeat_interleave(step, axis)[(slice(None),) * axis + (slice(step - 1, None, step),)]


def shifted(draw: random.Random, tensor: Tensor) -> Tensor:
    """With a beginning that no vector is aligned to."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


def with_odd_strides(draw: random.Random, tensor: Tensor) -> Tensor:
    """With a stride of axes of length 1 that leads out of memory."""
    tensor = tensor.contiguous()
    strides = [stride if size > 1 else 12345 for size, stride in zip(tensor.shape, tensor.stride())]
    return tensor.as_strided(tensor.shape, strides) if tensor.numel() else tensor
