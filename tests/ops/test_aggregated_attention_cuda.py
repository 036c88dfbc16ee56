"""The CUDA kernels of aggregated attention: on a GPU if there is one, and their source compiled for the CPU."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd.function import FunctionCtx

from bioattn_mm.ops import aggregated_attention
from bioattn_mm.ops.reference import aggregated_attention_reference
from tests.ops.conftest import needs_cuda
from tests.ops.cuda_on_cpu import CSRC, HERE, load_cuda_on_cpu
from tests.ops.test_aggregated_attention import FLOATING, make_arguments

Kernels = tuple[Callable[..., torch.Tensor], str]


class OnCPU(torch.autograd.Function):
    """The CUDA kernels, run on the CPU."""

    @staticmethod
    def forward(ctx: FunctionCtx, *inputs: torch.Tensor) -> torch.Tensor:
        output, logsumexp = torch.ops.bioattn_mm_cuda_on_cpu.aggregated_attention_forward(inputs)
        ctx.save_for_backward(*inputs, output, logsumexp)
        return output

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *inputs, output, logsumexp = ctx.saved_tensors
        operator = torch.ops.bioattn_mm_cuda_on_cpu.aggregated_attention_backward
        gradients = list(operator(grad.contiguous(), inputs, output, logsumexp))
        gradients.insert(-1, None)  # of pooled_bias_rows, the last input but one
        return tuple(gradients)


@pytest.fixture(scope='session')
def cuda_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    library = tmp_path_factory.mktemp('cuda_on_cpu') / 'aggregated_attention.so'
    sources = [CSRC / 'cuda' / f'aggregated_attention_{part}.cu' for part in ('forward', 'backward')]
    load_cuda_on_cpu([*sources, HERE / 'aggregated_attention.cpp'], library)
    return OnCPU.apply, 'cpu'


@pytest.fixture(params=['cuda on cpu', pytest.param('cuda', marks=needs_cuda)])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The operator, and the device it runs on."""
    if request.param == 'cuda on cpu':
        return request.getfixturevalue('cuda_on_cpu')
    return lambda *inputs: aggregated_attention(*inputs, backend='cuda'), 'cuda'


def to_device(arguments: dict[str, torch.Tensor], device: str) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in arguments.values()]


def values_and_gradients(operator: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    inputs = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    output = operator(*inputs)
    output_weights = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output).to(output.dtype)
    gradients = torch.autograd.grad(output, [t for t in inputs if t.requires_grad], output_weights)
    return [output.detach(), *gradients]


def check_against_the_reference(kernels: Kernels, arguments: dict[str, torch.Tensor], tolerance: float) -> None:
    operator, device = kernels
    inputs = to_device(arguments, device)
    exact = [t.double() if t.is_floating_point() else t for t in inputs]
    wanted = values_and_gradients(aggregated_attention_reference, exact)
    for name, result, want in zip(['output', *FLOATING], values_and_gradients(operator, inputs), wanted, strict=True):
        assert result.dtype == inputs[0].dtype
        atol = tolerance * want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(result.double(), want, rtol=0, atol=atol, msg=lambda m: f'{name}: {m}')  # noqa: B023


SIZES = [
    dict(),
    dict(grid=(17, 19), pooled_grid=(5, 9), channels=24, batch=1),  # parts of tiles at every edge
    dict(grid=(3, 70), pooled_grid=(1, 40), heads=1),  # several blocks along a row, of queries and of pooled keys
    dict(grid=(4, 5), pooled_grid=(9, 8), channels=16),  # more pooled keys than queries
    dict(window_size=5, channels=32),
    dict(window_size=7, channels=40),
    dict(window_size=9, channels=64),
    dict(grid=(1, 1), pooled_grid=(1, 1)),
    dict(batch=0),
]


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_float32(kernels: Kernels, sizes: dict) -> None:
    check_against_the_reference(kernels, make_arguments(**sizes, dtype=torch.float32), 1e-5)


@pytest.mark.parametrize('sizes', [SIZES[1], SIZES[6]], ids=str)
# Gradients of the logits are small differences of numbers that carry the rounding of the output.
@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.float16, 1e-2), (torch.bfloat16, 5e-2)])
def test_half_precision(kernels: Kernels, sizes: dict, dtype: torch.dtype, tolerance: float) -> None:
    arguments = make_arguments(**sizes, dtype=torch.float32)
    arguments['query'] /= arguments['query'].shape[-1] ** 0.5
    half = {name: t.to(dtype) if t.is_floating_point() else t for name, t in arguments.items()}
    check_against_the_reference(kernels, half, tolerance)


def test_half_precision_sums_in_float32(kernels: Kernels) -> None:
    # 2048 + 1 is 2048 in float16: sums in float16 of 3600 weights would not come out.
    operator, device = kernels
    arguments = make_arguments(grid=(1, 1), pooled_grid=(60, 60), dtype=torch.float16)
    arguments = {name: torch.zeros_like(tensor) for name, tensor in arguments.items()}
    arguments['pooled_value'] += 1
    output = operator(*to_device(arguments, device))
    torch.testing.assert_close(output.float().cpu(), torch.full((2, 1, 1, 2, 8), 3600 / 3601), rtol=2e-3, atol=0)


def test_first_pooled_keys_without_weight(kernels: Kernels) -> None:
    # The online softmax meets only -inf before the first finite logit.
    arguments = make_arguments(pooled_grid=(12, 9), dtype=torch.float32)
    arguments['pooled_bias_rows'] = torch.arange(12).clamp(max=3).expand(5, 12).clone()
    arguments['pooled_bias'] = arguments['pooled_bias'].index_fill(1, torch.tensor([0, 1, 2]), float('-inf'))
    check_against_the_reference(kernels, arguments, 1e-5)
    arguments['pooled_bias_rows'] = torch.arange(12).sub(8).clamp(min=0).expand(5, 12).clone()
    check_against_the_reference(kernels, arguments, 1e-5)


def test_large_logits_stay_finite(kernels: Kernels) -> None:
    arguments = make_arguments(dtype=torch.float32)
    arguments['query'] *= 1e4
    operator, device = kernels
    results = values_and_gradients(operator, to_device(arguments, device))
    assert all(result.isfinite().all() for result in results)


def test_nan_propagates_and_goes_no_further(kernels: Kernels) -> None:
    operator, device = kernels
    arguments = make_arguments(dtype=torch.float32)
    arguments['query'][0, 2, 3, 1, 0] = float('nan')
    output = operator(*to_device(arguments, device))
    assert output[0, 2, 3, 1].isnan().all()
    assert output.isnan().sum() == output.shape[-1]


def test_the_same_twice(kernels: Kernels) -> None:
    operator, device = kernels
    arguments = make_arguments(grid=(17, 19), pooled_grid=(5, 9), dtype=torch.float32)
    inputs = to_device(arguments, device)
    first, second = (values_and_gradients(operator, inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ('sizes', 'dtype', 'message'),
    [
        (dict(channels=12), torch.float32, 'takes 8, 16, ... 64 channels a head, got 12'),
        (dict(channels=72), torch.float32, 'takes 8, 16, ... 64 channels a head, got 72'),
        (dict(window_size=11), torch.float32, 'takes windows of 3, 5, 7 and 9, got 121 window offsets'),
        (dict(), torch.float64, 'takes float32, float16 and bfloat16, got Double'),
    ],
)
def test_what_the_kernels_do_not_take(kernels: Kernels, sizes: dict, dtype: torch.dtype, message: str) -> None:
    operator, device = kernels
    arguments = make_arguments(**sizes, dtype=dtype)
    with pytest.raises((ValueError, TypeError), match=message):
        operator(*to_device(arguments, device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU')
@pytest.mark.parametrize('sizes', [dict(channels=12), dict(window_size=11)], ids=str)
def test_by_default_pytorch_takes_the_rest(sizes: dict) -> None:
    arguments = {name: tensor.cuda() for name, tensor in make_arguments(**sizes).items()}
    expected = aggregated_attention_reference(*arguments.values())
    torch.testing.assert_close(aggregated_attention(**arguments), expected)


@needs_cuda
def test_operator_is_registered_as_torch_expects() -> None:
    arguments = make_arguments(batch=1, dtype=torch.float32)
    inputs = [t.cuda().requires_grad_(t.is_floating_point()) for t in arguments.values()]
    torch.library.opcheck(torch.ops.bioattn_mm.aggregated_attention.default, inputs)
