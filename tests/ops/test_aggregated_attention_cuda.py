"""The CUDA kernels of aggregated attention, also from the projections on (cosine attention).

They run on a GPU if there is one, and their source compiled for the CPU.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd.function import FunctionCtx

from bioattn_mm.ops import CosineAttentionInputs, aggregated_attention, cosine_attention
from bioattn_mm.ops.check import relative_error
from bioattn_mm.ops.reference import aggregated_attention_reference
from bioattn_mm.ops.samples import OPERATORS
from tests.needs import needs
from tests.ops.conftest import needs_cuda
from tests.ops.cuda_on_cpu import CSRC, CUDAOnCPU
from tests.ops.inputs import aggregated_attention_inputs, cosine_attention_inputs

Kernels = tuple[Callable[..., torch.Tensor], str]
SOURCES = [CSRC / 'cuda' / f'aggregated_attention_{part}.cu' for part in ('forward', 'backward')]
COSINE_SOURCE = CSRC / 'cuda' / 'cosine_attention_cuda.cu'


class OnCPU(torch.autograd.Function):
    """The CUDA kernels of an operator, 'aggregated_attention' or 'cosine_attention', run on the CPU."""

    @staticmethod
    def forward(ctx: FunctionCtx, emulation: CUDAOnCPU, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        results = getattr(emulation.operators, f'{name}_forward')(inputs, any(ctx.needs_input_grad))
        ctx.backward_operator = getattr(emulation.operators, f'{name}_backward')
        ctx.save_for_backward(*inputs, *results)
        return results[0]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *inputs, output, logsumexp, rounding = ctx.saved_tensors
        gradients = iter(ctx.backward_operator(grad, inputs, output, logsumexp, rounding))
        return None, None, *(next(gradients) if t.is_floating_point() else None for t in inputs)


@pytest.fixture(scope='session')
def turing(emulation_folder: Path) -> CUDAOnCPU:
    """The kernels for compute capability 7.5, on the CPU: tensor cores for float16 alone, and ordinary copies."""
    return CUDAOnCPU('turing_on_cpu', emulation_folder, capability=750)


def on_cpu(emulation: CUDAOnCPU, name: str = 'aggregated_attention') -> Kernels:
    emulation.draw_order()
    return partial(OnCPU.apply, emulation, name), 'cpu'


@pytest.fixture(
    params=[
        pytest.param('cuda on cpu', marks=pytest.mark.slow),
        # By default test_cuda_on_cpu.py tests the functions that are different in it.
        pytest.param('turing on cpu', marks=pytest.mark.every_kernel),
        pytest.param('cuda', marks=needs_cuda),
    ]
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The operator, and the device it runs on."""
    if request.param == 'cuda':
        return lambda *inputs: aggregated_attention(*inputs, backend='cuda'), 'cuda'
    return on_cpu(request.getfixturevalue('turing' if 'turing' in request.param else 'cuda_on_cpu'))


def to_device(arguments: dict[str, torch.Tensor], device: str) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in arguments.values()]


def values_and_gradients(
    operator: Callable[..., torch.Tensor], inputs: list[torch.Tensor], views: bool = False
) -> list[torch.Tensor]:
    """`views`: without copies of the inputs, and with a gradient of the output that begins anywhere, too."""
    inputs = [(t if views else t.clone()).detach().requires_grad_(t.is_floating_point()) for t in inputs]
    output = operator(*inputs)
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).to(output.dtype)
    if views:
        weights = torch.cat([weights.new_zeros(1), weights])[1:]
    leaves = [t for t in inputs if t.requires_grad]
    return [output.detach(), *torch.autograd.grad(output, leaves, weights.view_as(output))]


def check_against_the_reference(
    kernels: Kernels,
    arguments: dict[str, torch.Tensor],
    tolerance: float,
    formula: Callable[..., torch.Tensor] = aggregated_attention_reference,
    smallest: float = 0.0,
) -> None:
    """Values and gradients are those of the formula in float64, as fractions of the largest ones."""
    operator, device = kernels
    inputs = to_device(arguments, device)
    wanted = values_and_gradients(formula, [t.double() if t.is_floating_point() else t for t in inputs])
    leaves = {name: t for name, t in zip(arguments, inputs) if t.is_floating_point()}
    dtypes = [inputs[0].dtype, *(t.dtype for t in leaves.values())]
    results = values_and_gradients(operator, inputs)
    for name, result, want, dtype in zip(['output', *leaves], results, wanted, dtypes, strict=True):
        assert result.dtype == dtype
        atol = tolerance * max(want.abs().max().item(), smallest) if want.numel() else 0
        torch.testing.assert_close(result.double(), want, rtol=0, atol=atol, msg=lambda m: f'{name}: {m}')  # noqa: B023


def check_cosine_attention(kernels: Kernels, inputs: CosineAttentionInputs, tolerance: float) -> None:
    """As in bioattn_mm.ops.check: sums in which large terms cancel, as that of the scale, are near 0."""
    formula = partial(cosine_attention, backend='reference')
    check_against_the_reference(kernels, inputs._asdict(), tolerance, formula, smallest=0.1)


SIZES = [
    dict(),
    # Parts of tiles at every edge; about one pair of rows for each row of the bias.
    dict(grid=(17, 19), pooled_grid=(5, 9), channels=24, batch=1, rows=90),
    dict(grid=(3, 70), pooled_grid=(1, 40), heads=1),  # several blocks along a row, of queries and of pooled keys
    dict(grid=(4, 5), pooled_grid=(9, 8), channels=16),  # more pooled keys than queries
    dict(window_size=5, channels=32),
    dict(window_size=5, channels=24, heads=1, batch=1),
    dict(window_size=7, channels=40),
    dict(window_size=9, channels=64),
    dict(window_size=1, channels=48),
    dict(grid=(18, 9), pooled_grid=(17, 11), channels=56, heads=1, batch=1),
    dict(grid=(1, 1), pooled_grid=(1, 1)),
    dict(batch=0),
    dict(grid=(0, 7)),
    dict(grid=(5, 0)),
    dict(pooled_grid=(0, 3)),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.mark.parametrize('sizes', SIZES, ids=str)
@pytest.mark.parametrize('dtype', TOLERANCE, ids=str)
def test_values_and_gradients(kernels: Kernels, sizes: dict, dtype: torch.dtype) -> None:
    arguments = aggregated_attention_inputs(**sizes, dtype=torch.float32)
    arguments['query'] /= max(arguments['query'].shape[-1], 1) ** 0.5
    rounded = {name: t.to(dtype) if t.is_floating_point() else t for name, t in arguments.items()}
    check_against_the_reference(kernels, rounded, TOLERANCE[dtype])


@pytest.mark.parametrize('pairs', [(1, 1), (9, 5), (3, 11), (32, 2)])
def test_gradient_of_the_bias_with_any_number_of_pairs_of_rows(kernels: Kernels, pairs: tuple[int, int]) -> None:
    # A lane counts its share of the pairs: none, some, or all have the same row of the bias, and some rows have none.
    # A pair more or less is a large error; rounding may be one, where the gradients of a softmax cancel each other.
    sizes = dict(grid=(pairs[0], 2), pooled_grid=(pairs[1], 1), heads=1, batch=1, rows=11)
    arguments = aggregated_attention_inputs(**sizes, dtype=torch.float32)
    check_against_the_reference(kernels, arguments, 1e-3)
    arguments['pooled_bias_rows'].fill_(7)
    check_against_the_reference(kernels, arguments, 1e-3)


def test_half_precision_sums_in_float32(kernels: Kernels) -> None:
    # 2048 + 1 is 2048 in float16: sums in float16 of 3600 weights would not come out.
    operator, device = kernels
    arguments = aggregated_attention_inputs(grid=(1, 1), pooled_grid=(60, 60), dtype=torch.float16)
    arguments = {name: torch.zeros_like(tensor) for name, tensor in arguments.items()}
    arguments['pooled_value'] += 1
    output = operator(*to_device(arguments, device))
    torch.testing.assert_close(output.float().cpu(), torch.full((2, 1, 1, 2, 8), 3600 / 3601), rtol=2e-3, atol=0)


def test_first_pooled_keys_without_weight(kernels: Kernels) -> None:
    # The online softmax meets only -inf before the first finite logit.
    arguments = aggregated_attention_inputs(pooled_grid=(12, 9), dtype=torch.float32)
    arguments['pooled_bias_rows'] = torch.arange(12).clamp(max=3).expand(5, 12).clone()
    arguments['pooled_bias'] = arguments['pooled_bias'].index_fill(1, torch.tensor([0, 1, 2]), float('-inf'))
    check_against_the_reference(kernels, arguments, 1e-5)
    arguments['pooled_bias_rows'] = torch.arange(12).sub(8).clamp(min=0).expand(5, 12).clone()
    check_against_the_reference(kernels, arguments, 1e-5)


def test_nan_of_a_query_goes_no_further_and_large_queries_stay_finite(kernels: Kernels) -> None:
    operator, device = kernels
    arguments = aggregated_attention_inputs(dtype=torch.float32)
    large = arguments | dict(query=1e4 * arguments['query'])
    assert all(result.isfinite().all() for result in values_and_gradients(operator, to_device(large, device)))
    arguments['query'][0, 2, 3, 1, 0] = float('nan')
    output = operator(*to_device(arguments, device))
    assert output[0, 2, 3, 1].isnan().all()
    assert output.isnan().sum() == output.shape[-1]


def test_the_same_twice(kernels: Kernels) -> None:
    operator, device = kernels
    inputs = to_device(aggregated_attention_inputs(grid=(9, 10), pooled_grid=(5, 9), dtype=torch.float32), device)
    check_the_same_twice(operator, inputs)


def check_the_same_twice(operator: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> None:
    first = values_and_gradients(operator, inputs)
    if isinstance(operator, partial) and operator.args:  # the emulation, with another order of the threads
        operator.args[0].draw_order()
    second = values_and_gradients(operator, inputs)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_sums_over_many_keys_are_not_biased(kernels: Kernels) -> None:
    # Tensor cores round every sum toward zero: 1764 weights of a softmax would sum to 1 - 2e-5.
    operator, device = kernels
    arguments = aggregated_attention_inputs(batch=1, grid=(2, 3), pooled_grid=(42, 42), heads=1, dtype=torch.float32)
    arguments['value'].fill_(1)
    arguments['pooled_value'].fill_(1)
    arguments['token_weights'].zero_()
    output = operator(*to_device(arguments, device))[0, 0, 1].cpu()  # a window row is outside, and has no weight
    torch.testing.assert_close(output, torch.ones_like(output), rtol=0, atol=1e-6)
    arguments = aggregated_attention_inputs(batch=1, grid=(2, 3), pooled_grid=(42, 42), heads=1, dtype=torch.float32)
    check_against_the_reference(kernels, arguments, 5e-6)


def test_rounding_of_the_output_does_not_reach_the_gradients(kernels: Kernels) -> None:
    # Large token weights make a large output, whose rounding is large beside the gradients of the softmax.
    arguments = aggregated_attention_inputs(channels=24, dtype=torch.float32)
    arguments['token_weights'] *= 30
    half = {name: t.half() if t.is_floating_point() else t for name, t in arguments.items()}
    check_against_the_reference(kernels, half, 2e-3)


def shifted(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Kernels load several channels at once, from addresses that are multiples of so many bytes."""
    return [torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for t in inputs]


def strided(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.transpose(0, -1).contiguous().transpose(0, -1) for t in inputs]


def with_a_column_of_any_stride(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """PyTorch takes a tensor for contiguous whatever the stride of an axis of one element is."""
    return [t.as_strided(t.shape, (*t.stride()[:2], 3, *t.stride()[3:])) if t.dim() == 5 else t for t in inputs]


def keys_and_values_of_one_tensor(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """As a linear layer gives them, of the window and of the pooled grid: kernels read such views without a copy."""
    pairs = (torch.stack(inputs[first : first + 2], dim=3).unbind(3) for first in (1, 3))
    return [inputs[0], *(view for pair in pairs for view in pair), *inputs[5:]]


@pytest.mark.parametrize(
    ('layout', 'dtype', 'sizes'),
    [
        *((shifted, dtype, {}) for dtype in TOLERANCE),
        (strided, torch.float32, {}),
        (with_a_column_of_any_stride, torch.float32, dict(grid=(5, 1), pooled_grid=(3, 1))),
        *((keys_and_values_of_one_tensor, dtype, dict(channels=24)) for dtype in (torch.float32, torch.float16)),
    ],
)
def test_memory_layout_does_not_matter(kernels: Kernels, layout: Callable, dtype: torch.dtype, sizes: dict) -> None:
    operator, device = kernels
    inputs = to_device(aggregated_attention_inputs(**sizes, dtype=dtype), device)
    views = layout(inputs)
    assert any((view.stride(), view.storage_offset()) != (t.stride(), 0) for view, t in zip(views, inputs))
    results = values_and_gradients(operator, views, views=True)
    for result, want in zip(results, values_and_gradients(operator, inputs), strict=True):
        assert torch.equal(result, want)


@pytest.mark.slow
@pytest.mark.parametrize('row', [-1, 4, 2**40])
def test_rows_outside_of_the_bias(cuda_on_cpu: CUDAOnCPU, row: int) -> None:
    # Only in the emulation: on a GPU an assertion in a kernel ends the process's use of it.
    operator, _ = on_cpu(cuda_on_cpu)
    arguments = aggregated_attention_inputs(dtype=torch.float32)
    arguments['pooled_bias_rows'][3, 1] = row
    with pytest.raises(RuntimeError, match='pooled_bias_rows has a row that pooled_bias has not'):
        operator(*arguments.values())


# Sums over the queries in two splits of two chunks and of one: a block then stages queries more than once.
SEVERAL_CHUNKS = dict(batch=1, grid=(6, 9), pooled_grid=(1400, 1))


@pytest.mark.every_kernel
def test_several_chunks_in_a_split(kernels: Kernels) -> None:
    check_against_the_reference(kernels, aggregated_attention_inputs(**SEVERAL_CHUNKS, dtype=torch.float32), 1e-5)


@pytest.mark.slow
@pytest.mark.every_kernel
def test_every_barrier_is_needed(cuda_on_cpu: CUDAOnCPU) -> None:
    kernels = on_cpu(cuda_on_cpu)

    def run() -> None:
        for sizes in (SIZES[1] | dict(grid=(9, 10)), SEVERAL_CHUNKS):
            arguments = aggregated_attention_inputs(**sizes, dtype=torch.float32)
            check_against_the_reference(kernels, arguments, 1e-5)

    cuda_on_cpu.check_that_barriers_are_needed(12, run, *SOURCES)


@pytest.mark.slow
@pytest.mark.every_kernel
def test_every_barrier_of_cosine_attention_is_needed(cuda_on_cpu: CUDAOnCPU) -> None:
    operator, _ = on_cpu(cuda_on_cpu, 'cosine_attention')
    inputs = list(cosine_attention_inputs(batch=1, grid=(17, 31), heads=1, channels=24, dtype=torch.float32))
    cuda_on_cpu.check_that_barriers_are_needed(4, lambda: values_and_gradients(operator, inputs), COSINE_SOURCE)


@pytest.mark.slow
def test_every_instruction(cuda_on_cpu: CUDAOnCPU) -> None:
    kernels = on_cpu(cuda_on_cpu)
    for dtype, tolerance in TOLERANCE.items():
        arguments = aggregated_attention_inputs(batch=1, channels=24, dtype=dtype)
        check_against_the_reference(kernels, arguments, tolerance)
    source = (CSRC / 'cuda' / 'device.cuh').read_text()
    instructions = set(re.findall(r'"((?:mma|ldmatrix|cp|ex2|rcp|cvt)\.[\w.]+)', source))
    assert len([name for name in instructions if name.startswith('mma')]) == 5
    assert set(cuda_on_cpu.operators.executed_instructions()) == instructions


@pytest.mark.parametrize(
    ('sizes', 'dtype', 'message'),
    [
        (dict(channels=12), torch.float32, 'takes 8, 16, ... 64 channels a head, got 12'),
        (dict(channels=72), torch.float32, 'takes 8, 16, ... 64 channels a head, got 72'),
        (dict(window_size=11), torch.float32, 'takes windows of 3, 5, 7 and 9, got 121 window offsets'),
        (dict(), torch.float64, 'takes float32, float16 and bfloat16, got (Double|float64)'),
    ],
)
def test_what_the_kernels_do_not_take(kernels: Kernels, sizes: dict, dtype: torch.dtype, message: str) -> None:
    operator, device = kernels
    arguments = aggregated_attention_inputs(**sizes, dtype=dtype)
    with pytest.raises((ValueError, TypeError), match=message):
        operator(*to_device(arguments, device))


@needs('GPU')
@pytest.mark.parametrize('sizes', [dict(channels=12), dict(window_size=11)], ids=str)
def test_by_default_pytorch_takes_the_rest(sizes: dict) -> None:
    arguments = {name: tensor.cuda() for name, tensor in aggregated_attention_inputs(**sizes).items()}
    expected = aggregated_attention_reference(*arguments.values())
    torch.testing.assert_close(aggregated_attention(**arguments), expected)


@pytest.fixture(params=[pytest.param('cpu', marks=pytest.mark.slow), pytest.param('cuda', marks=needs_cuda)])
def cosine_kernels(request: pytest.FixtureRequest) -> Kernels:
    """Cosine attention, and the device it runs on."""
    if request.param == 'cuda':
        return partial(cosine_attention, backend='cuda'), 'cuda'
    return on_cpu(request.getfixturevalue('cuda_on_cpu'), 'cosine_attention')


@pytest.mark.parametrize(
    ('sizes', 'dtype', 'tolerance'),
    [
        # More tokens than the blocks for their sums take at once, and not a whole number of blocks.
        (dict(batch=1, grid=(17, 31), pooled_grid=(2, 5), heads=1, channels=24), torch.float32, 4e-5),
        (dict(grid=(3, 4), window_size=5, channels=40, heads=3), torch.float32, 4e-5),
        (dict(batch=1, grid=(1, 1), pooled_grid=(1, 1), channels=16), torch.float32, 4e-5),
        (dict(batch=0), torch.float32, 4e-5),
        (dict(channels=24), torch.float16, 5e-3),
        (dict(channels=24), torch.bfloat16, 4e-2),
    ],
    ids=str,
)
def test_cosine_attention(cosine_kernels: Kernels, sizes: dict, dtype: torch.dtype, tolerance: float) -> None:
    check_cosine_attention(cosine_kernels, cosine_attention_inputs(**sizes, dtype=dtype), tolerance)


def test_parts_that_are_larger_than_their_sum(cosine_kernels: Kernels) -> None:
    """Many queries share one pooled key, and the gradient of their output grows from -1 to 1."""
    operator, device = cosine_kernels
    samples = OPERATORS['cosine_attention']
    kernels = replace(samples, run=lambda *inputs, backend: operator(*inputs))
    torch.manual_seed(0)
    inputs = kernels.inputs(dict(batch=1, grid=(64, 64), pooled_grid=(1, 1), heads=1), device, torch.float32)
    exact = [t.double() if t.is_floating_point() else t for t in inputs]
    place = 1 + CosineAttentionInputs._fields.index('pooled_key_value')
    result, want = (
        sample.values_and_gradients(*arguments)[place]
        for sample, arguments in ((kernels, (inputs, device)), (samples, (exact, 'reference')))
    )
    assert relative_error(result, want) < 4e-6


@pytest.mark.every_kernel
def test_cosine_attention_with_the_largest_window(cosine_kernels: Kernels) -> None:
    """Fewer tokens at a time fit shared memory."""
    inputs = cosine_attention_inputs(batch=1, grid=(5, 33), window_size=9, channels=64, heads=1, dtype=torch.float32)
    # Short, as in models: with 64 numbers around 1 the terms of the scale's gradient are a hundred times their sum.
    check_cosine_attention(cosine_kernels, inputs._replace(query_embedding=inputs.query_embedding / 8), 4e-5)


def test_cosine_attention_of_zeros_and_nan(cosine_kernels: Kernels) -> None:
    inputs = cosine_attention_inputs(dtype=torch.float32)
    inputs.query[0, 2, 3] = 0
    inputs.key_value[0, 1, 4] *= 1e-9  # below the smallest norm, a vector is multiplied by a constant
    inputs.pooled_key_value[1, 1, 1] = 0
    check_cosine_attention(cosine_kernels, inputs, 4e-5)
    inputs.query[0, 4, 6, 1, 2] = float('nan')
    operator, device = cosine_kernels
    output = operator(*(t.to(device) for t in inputs))
    assert output[0, 4, 6, 1].isnan().all() and output.isnan().sum() == 8


def test_cosine_attention_is_the_same_twice(cosine_kernels: Kernels) -> None:
    operator, device = cosine_kernels
    inputs = [t.to(device) for t in cosine_attention_inputs(batch=1, grid=(12, 23), channels=24, dtype=torch.float16)]
    check_the_same_twice(operator, inputs)


@pytest.mark.slow
def test_columns_outside_of_the_bias(cuda_on_cpu: CUDAOnCPU) -> None:
    inputs = cosine_attention_inputs(dtype=torch.float32)
    inputs.pooled_bias_columns[3, 1] = 13
    with pytest.raises(RuntimeError, match='pooled_bias_columns must be columns of pooled_bias'):
        cuda_on_cpu.operators.cosine_attention_forward(list(inputs), False)
