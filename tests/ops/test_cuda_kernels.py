"""The CUDA kernels, on a GPU if there is one, and their source compiled for the CPU.

The files of deformable attention, `log_cpb_table`, the sliding window and `sparse_codes` have the values of these.
"""

import random
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import aggregated_attention
from bioattn_mm.ops.check import relative_error
from bioattn_mm.ops.samples import OPERATORS
from tests.ops import kernels
from tests.ops.conftest import ON_CUDA, Place, place_of
from tests.ops.cuda_on_cpu import CSRC, CUDAOnCPU
from tests.ops.kernels import KERNELS, TOLERANCE, aggregated_attention_inputs, check, inputs_of, to_double

# Places of the tensors of aggregated attention.
POOLED_VALUE, POOLED_BIAS, POOLED_BIAS_ROWS = 4, 6, 7

FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16
GATE, BOTH = 'gate after a linear layer', 'add_norm, both results'
AGGREGATED, COSINE, DEFORMABLE = 'aggregated_attention', 'cosine_attention', 'deformable_attention'
POOLED = dict(height=4, width=9, channels=6)
SIZES = [
    # Parts of tiles at every edge; about one pair of rows for each row of the bias.
    dict(grid=(17, 19), pooled_grid=(5, 9), channels=24, batch=1, rows=90),
    dict(window_size=5, channels=32),
    dict(window_size=5, channels=24, heads=1, batch=1),
    dict(grid=(18, 9), pooled_grid=(17, 11), channels=56, heads=1, batch=1),
    dict(grid=(5, 0)),
    dict(pooled_grid=(0, 3)),
    *(sizes for sizes in OPERATORS[AGGREGATED].sizes if OPERATORS[AGGREGATED].make(**sizes)[0].numel() < 9000),
]
# Sums over the queries in two splits of two chunks and of one: a block then stages queries more than once.
SEVERAL_CHUNKS = dict(batch=1, grid=(6, 9), pooled_grid=(1400, 1))
# More tokens than the blocks for their sums take at once, and not a whole number of blocks.
SEVERAL_BLOCKS = dict(batch=1, grid=(17, 31), pooled_grid=(2, 5), heads=1, channels=24)
SIZES_OF = {
    **{(AGGREGATED, dtype): SIZES for dtype in TOLERANCE},
    (COSINE, FLOAT32): [
        SEVERAL_BLOCKS,
        dict(grid=(3, 4), window_size=5, channels=40, heads=3),
        dict(batch=1, grid=(1, 1), pooled_grid=(1, 1), channels=16),
        dict(batch=0),
        # Parts of tiles at every edge; gradients of more sums than there are at a time.
        dict(grid=(17, 19), pooled_grid=(5, 9), channels=24, batch=1, summands=4),
        dict(grid=(35, 1), pooled_grid=(30, 1), batch=1, summands=2),
        dict(grid=(0, 5), summands=2),
    ],
    **{(COSINE, dtype): [dict(channels=24), dict(summands=4)] for dtype in (FLOAT16, BFLOAT16)},
    **{
        (DEFORMABLE, dtype): [dict(), dict(shapes=((3, 4),), channels=37), dict(batch=0), dict(queries=0)]
        for dtype in (*TOLERANCE, torch.float64)
    },
    (GATE, FLOAT32): [
        dict(grid=(1, 1)),
        dict(grid=(1, 6), channels=2),
        dict(grid=(9, 17), channels=70, batch=1),  # blocks that begin with the last row, column and channels
        dict(grid=(8, 16), channels=64),  # blocks without a remainder
        dict(grid=(2, 3), channels=4, batch=9),  # more tiles than warps add them up
        dict(batch=0),
    ],
    **{(GATE, dtype): [dict(grid=(3, 5), channels=6)] for dtype in (FLOAT16, BFLOAT16)},
    ('gated_convolution', FLOAT32): [dict(grid=(3, 4))],
    ('add_norm', FLOAT32): [dict(grid=(4, 9), channels=6)],
    ('add_norm of two tensors', FLOAT32): [dict(grid=(4, 9), channels=6)],
    (BOTH, FLOAT32): [
        dict(grid=(1, 1), channels=2),
        dict(grid=(5, 9), channels=64, batch=1),
        dict(grid=(1, 3), channels=1030, batch=3),  # more than a block with eight warps has memory for
        dict(batch=0),
    ],
    (BOTH, FLOAT16): [dict(grid=(3, 5), channels=6)],
    (BOTH, BFLOAT16): [dict(grid=(3, 5), channels=70)],
    ('gelu_pool_norm', FLOAT32): [POOLED | dict(batch=0)],
    ('gelu_pool_norm', FLOAT16): [POOLED],
    ('gelu_pool_norm', BFLOAT16): [POOLED | dict(channels=70)],
    # More tokens in a cell than warps; cells of one token.
    ('gelu_pool_norm to 2 x 2', FLOAT32): [dict(height=8, width=6, channels=64)],
    ('gelu_pool_norm to 4 x 9', FLOAT32): [POOLED | dict(batch=1)],
    ('gelu_pool_norm to 1 x 1', FLOAT32): [dict(height=1, width=1, channels=4)],
    **{(f'sliding_window_{of}', FLOAT32): [dict(grid=(0, 3)), dict(grid=(2, 0))] for of in ('qk', 'av')},
}
ROWS = [(name, sizes, dtype) for (name, dtype), each in SIZES_OF.items() for sizes in each]
ROWS.append(pytest.param(AGGREGATED, SEVERAL_CHUNKS, FLOAT32, marks=pytest.mark.every_kernel))


# Turing is left to `every_kernel`: test_cuda_on_cpu.py tests the functions that are different there.
@pytest.fixture(params=[*ON_CUDA, pytest.param('turing on cpu', marks=pytest.mark.every_kernel)])
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


def results_of(name: str, inputs: list[Tensor]) -> list[Tensor]:
    """Values and gradients without copies of the tensors, and of a gradient that begins anywhere in memory."""
    inputs = [tensor.detach() for tensor in inputs]
    leaves = [tensor.requires_grad_() for tensor in KERNELS[name].leaves(inputs)]
    output = KERNELS[name].run(*inputs, backend='cuda')
    weights = torch.linspace(-1, 1, output.numel() + 1).to(output)[1:]
    return [output.detach(), *torch.autograd.grad(output, leaves, weights.view_as(output))]


@pytest.mark.parametrize(('name', 'sizes', 'dtype'), ROWS, ids=str)
def test_values_and_gradients(name: str, sizes: dict, dtype: torch.dtype, place: Place) -> None:
    of_scale = 4e-5 if (name, dtype) == (COSINE, torch.float32) else None
    check(name, inputs_of(name, dtype, **sizes), place, of_scale)


@pytest.mark.parametrize('pairs', [(1, 1), (9, 5), (3, 11), (32, 2)])
def test_gradient_of_the_bias_with_any_number_of_pairs_of_rows(place: Place, pairs: tuple[int, int]) -> None:
    # A lane counts its share of the pairs: none, some, or all have the same row of the bias, and some rows have none.
    # A pair more or less is a large error; rounding may be one, where the gradients of a softmax cancel each other.
    sizes = dict(grid=(pairs[0], 2), pooled_grid=(pairs[1], 1), heads=1, batch=1, rows=11)
    inputs = inputs_of(AGGREGATED, **sizes)
    check(AGGREGATED, inputs, place, 1e-3)
    inputs[POOLED_BIAS_ROWS].fill_(7)
    check(AGGREGATED, inputs, place, 1e-3)


def test_half_precision_sums_in_float32(place: Place) -> None:
    # 2048 + 1 is 2048 in float16: sums in float16 of 3600 weights would not come out.
    inputs = inputs_of(AGGREGATED, FLOAT16, grid=(1, 1), pooled_grid=(60, 60))
    inputs = [torch.full_like(tensor, n == POOLED_VALUE).to(place.device) for n, tensor in enumerate(inputs)]
    output = aggregated_attention(*inputs, backend='cuda')
    torch.testing.assert_close(output.float().cpu(), torch.full((2, 1, 1, 2, 8), 3600 / 3601), rtol=2e-3, atol=0)


def test_first_pooled_keys_without_weight(place: Place) -> None:
    # The online softmax meets only -inf before the first finite logit.
    inputs = inputs_of(AGGREGATED, pooled_grid=(12, 9))
    inputs[POOLED_BIAS] = inputs[POOLED_BIAS].index_fill(1, torch.tensor([0, 1, 2]), float('-inf'))
    for rows in (torch.arange(12).clamp(max=3), torch.arange(12).sub(8).clamp(min=0)):
        inputs[POOLED_BIAS_ROWS].copy_(rows)
        check(AGGREGATED, inputs, place)


REPEATED = [
    (AGGREGATED, FLOAT32, dict(grid=(9, 10), pooled_grid=(5, 9))),
    (COSINE, FLOAT16, dict(batch=1, grid=(12, 23), channels=24)),
    (GATE, FLOAT32, dict(grid=(9, 18))),
    (BOTH, FLOAT32, dict(grid=(6, 6), channels=6)),
    ('gelu_pool_norm to 2 x 2', FLOAT32, dict(height=6, width=6, channels=6)),
    ('log_cpb_table', FLOAT32, dict(rows=9, columns=40, hidden=70, heads=5)),
    ('sparse_codes', FLOAT32, dict(states=19, channels=70)),
]


@pytest.mark.parametrize(('name', 'dtype', 'sizes'), REPEATED, ids=str)
def test_the_same_twice(name: str, dtype: torch.dtype, sizes: dict, place: Place) -> None:
    """On the emulation with another order of the threads."""
    inputs = [tensor.to(place.device) for tensor in inputs_of(name, dtype, **sizes)]
    first = KERNELS[name].values_and_gradients(inputs, 'cuda')
    if place.emulation:
        place.emulation.draw_order()
    second = KERNELS[name].values_and_gradients(inputs, 'cuda')
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_sums_over_many_keys_are_not_biased(place: Place) -> None:
    # Tensor cores round every sum toward zero: 1764 weights of a softmax would sum to 1 - 2e-5.
    sizes = dict(batch=1, grid=(2, 3), pooled_grid=(42, 42), heads=1)
    check(AGGREGATED, inputs_of(AGGREGATED, **sizes), place, 5e-6)
    inputs = aggregated_attention_inputs(**sizes, dtype=FLOAT32)
    for tensor, value in ((inputs.value, 1), (inputs.pooled_value, 1), (inputs.token_weights, 0)):
        tensor.fill_(value)
    output = aggregated_attention(*(tensor.to(place.device) for tensor in inputs), backend='cuda')
    output = output[0, 0, 1].cpu()  # a window row is outside, and has no weight
    torch.testing.assert_close(output, torch.ones_like(output), rtol=0, atol=1e-6)


def test_rounding_of_the_output_does_not_reach_the_gradients(place: Place) -> None:
    # Large token weights make a large output, whose rounding is large beside the gradients of the softmax.
    *inputs, token_weights = inputs_of(AGGREGATED, FLOAT16, channels=24)
    check(AGGREGATED, [*inputs, 30 * token_weights], place, 2e-3)


def keys_and_values_of_one_tensor(inputs: list[Tensor]) -> list[Tensor]:
    """As a linear layer gives them, of the window and of the pooled grid: kernels read such views without a copy."""
    pairs = (torch.stack(inputs[first : first + 2], dim=3).unbind(3) for first in (1, 3))
    return [inputs[0], *(view for pair in pairs for view in pair), *inputs[5:]]


def part_of_wider_tokens(draw: random.Random, tensor: Tensor) -> Tensor:
    """As one linear layer gives several of them."""
    return torch.cat((tensor, tensor), 3).narrow(3, 0, tensor.shape[3]) if tensor.dim() > 3 else tensor


@pytest.mark.parametrize(
    ('name', 'layout', 'dtype', 'sizes'),
    [
        *((COSINE, part_of_wider_tokens, dtype, {}) for dtype in (FLOAT32, BFLOAT16)),
        ('gelu_pool_norm', part_of_wider_tokens, BFLOAT16, POOLED),
        *((AGGREGATED, kernels.shifted, dtype, {}) for dtype in TOLERANCE),
        (AGGREGATED, kernels.sliced, FLOAT32, {}),
        (AGGREGATED, kernels.with_odd_strides, FLOAT32, dict(grid=(5, 1), pooled_grid=(3, 1))),
        *((AGGREGATED, keys_and_values_of_one_tensor, dtype, dict(channels=24)) for dtype in (FLOAT32, FLOAT16)),
        *(
            (name, layout, dtype, sizes)
            for name, dtype, sizes in (
                (GATE, BFLOAT16, dict(grid=(3, 4))),
                (BOTH, BFLOAT16, dict(grid=(4, 9), channels=6)),
                ('gelu_pool_norm', BFLOAT16, POOLED),
                ('log_cpb_table', torch.float64, dict(rows=5, columns=37, hidden=9)),
                ('sliding_window_qk', FLOAT32, {}),
                ('sliding_window_av', FLOAT32, {}),
                ('sparse_codes', FLOAT32, {}),
            )
            for layout in (kernels.shifted, kernels.sliced)
        ),
    ],
)
def test_any_memory_layout(name: str, layout: Callable, dtype: torch.dtype, sizes: dict, place: Place) -> None:
    inputs = [tensor.to(place.device) for tensor in inputs_of(name, dtype, **sizes)]
    of_each = layout != keys_and_values_of_one_tensor
    views = [layout(random.Random(0), tensor) for tensor in inputs] if of_each else layout(inputs)
    assert any((view.stride(), view.storage_offset()) != (t.stride(), 0) for view, t in zip(views, inputs))
    for result, want in zip(results_of(name, views), results_of(name, inputs), strict=True):
        assert torch.equal(result, want)


@pytest.mark.parametrize(
    ('name', 'number', 'wrong', 'message'),
    [
        *(
            (AGGREGATED, POOLED_BIAS_ROWS, row, 'pooled_bias_rows has a row that pooled_bias has not')
            for row in (-1, 4, 2**40)
        ),
        (COSINE, 7, 4, 'pooled_bias_rows has a row that pooled_bias has not'),
        (COSINE, 9, 13, 'pooled_bias_columns must be columns of pooled_bias'),
        *(
            (DEFORMABLE, 1, width, 'the levels of shapes must have the tokens of value')
            for width in (1, 3, -2, 2**62)
        ),
    ],
)
def test_index_outside_bias_raises(name: str, number: int, wrong: int, message: str, cuda_on_cpu: CUDAOnCPU) -> None:
    # Only in the emulation: on a GPU an assertion in a kernel ends the process's use of it.
    inputs = inputs_of(name)
    inputs[number][-1, 1] = wrong
    with pytest.raises(RuntimeError, match=message):
        KERNELS[name].run(*inputs, backend='cuda')


@pytest.mark.every_kernel
@pytest.mark.parametrize(
    ('number', 'sources', 'calls'),
    [
        (
            *(12, ('aggregated_attention_forward.cu', 'aggregated_attention_backward.cu')),
            [(REPEATED[0][0], FLOAT32, each) for each in (SIZES[0] | dict(grid=(9, 10)), SEVERAL_CHUNKS)],
        ),
        (4, ('cosine_attention_cuda.cu',), [(COSINE, FLOAT32, SEVERAL_BLOCKS)]),
        (3, ('gated_convolution_cuda.cu', 'device.cuh'), REPEATED[2:3]),
        (3, ('layer_norm_cuda.cu', 'device.cuh'), REPEATED[3:5]),
        (5, ('log_cpb_cuda.cu',), [('log_cpb_table', torch.float64, REPEATED[5][2])]),
    ],
    ids=str,
)
def test_every_barrier_is_needed(number: int, sources: tuple, calls: list, cuda_on_cpu: CUDAOnCPU) -> None:
    places = [
        f'{source}:{line}'
        for source in sources
        for line, text in enumerate((CSRC / 'cuda' / source).read_text().splitlines(), 1)
        if re.search(r'__sync(threads|warp)\(\);', text)
    ]
    assert len(places) == number
    for place in places:
        cuda_on_cpu.draw_order()
        with cuda_on_cpu.without_barrier(place), pytest.raises(RuntimeError, match='without a barrier|uninitialised'):
            for name, dtype, sizes in calls:
                KERNELS[name].values_and_gradients(inputs_of(name, dtype, **sizes), 'cuda')


def test_every_instruction(cuda_on_cpu: CUDAOnCPU) -> None:
    for dtype in TOLERANCE:
        inputs = inputs_of(AGGREGATED, dtype, batch=1, channels=24)
        check(AGGREGATED, inputs, Place('cuda'))
    source = (CSRC / 'cuda' / 'device.cuh').read_text()
    instructions = set(re.findall(r'"((?:mma|ldmatrix|cp|ex2|rcp|cvt)\.[\w.]+)', source))
    assert len([name for name in instructions if name.startswith('mma')]) == 5
    assert set(cuda_on_cpu.operators.executed_instructions()) == instructions


@pytest.mark.parametrize(
    ('sizes', 'dtype', 'message'),
    [
        (dict(channels=12), FLOAT32, '8, 16, ... 64 channels a head, got 12'),
        (dict(channels=72), FLOAT32, '8, 16, ... 64 channels a head, got 72'),
        (dict(window_size=11), FLOAT32, 'windows of 3, 5, 7 and 9, got 121 window offsets'),
        (dict(), torch.float64, r'takes .*, got (Double|float64)'),
    ],
)
def test_what_the_kernels_do_not_take(place: Place, sizes: dict, dtype: torch.dtype, message: str) -> None:
    inputs = [tensor.to(place.device) for tensor in inputs_of(AGGREGATED, dtype, **sizes)]
    with pytest.raises((ValueError, TypeError), match=message):
        aggregated_attention(*inputs, backend='cuda')


def test_parts_that_are_larger_than_their_sum(place: Place) -> None:
    """Many queries share one pooled key, and the gradient of their output grows from -1 to 1."""
    operator = OPERATORS[COSINE]
    inputs = operator.inputs(dict(batch=1, grid=(64, 64), pooled_grid=(1, 1), heads=1), place.device, FLOAT32)
    result, want = (
        operator.values_and_gradients(*arguments)[3]  # of pooled_key_value
        for arguments in ((inputs, 'cuda'), ([*map(to_double, inputs)], 'reference'))
    )
    assert relative_error(result, want) < 4e-6


@pytest.mark.every_kernel
def test_cosine_attention_with_the_largest_window(place: Place) -> None:
    """Fewer tokens at a time fit shared memory."""
    inputs = inputs_of(COSINE, batch=1, grid=(5, 33), window_size=9, channels=64, heads=1)
    # Short, as in models: with 64 numbers around 1 the terms of the scale's gradient are a hundred times their sum.
    inputs[4] /= 8
    check(COSINE, inputs, place, 5e-4)
