"""The table of the log-spaced position bias against its formula."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.autograd.function import FunctionCtx
from torch.profiler import ProfilerActivity, profile

from bioattn_mm.ops import log_cpb, log_cpb_table
from tests.ops.conftest import needs_cuda, needs_library
from tests.ops.cuda_on_cpu import CSRC, HERE, CUDAOnCPU, barriers_in

KERNELS = CSRC / 'cuda' / 'log_cpb_cuda.cu'
Operator = Callable[..., torch.Tensor]


class OnCPU(torch.autograd.Function):
    """The CUDA kernels, run on the CPU."""

    @staticmethod
    def forward(ctx: FunctionCtx, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs[:3])
        return torch.ops.log_cpb_on_cpu.log_cpb_table(*inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.ops.log_cpb_on_cpu.log_cpb_table_backward(grad, *ctx.saved_tensors), grad.sum((1, 2))


@pytest.fixture(scope='module')
def cuda_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> CUDAOnCPU:
    return CUDAOnCPU('log_cpb_on_cpu', [KERNELS, HERE / 'log_cpb.cpp'], tmp_path_factory.mktemp('log_cpb'))


@pytest.fixture(
    params=[
        'reference',
        pytest.param('cpu', marks=needs_library),
        'cuda on cpu',
        pytest.param('cuda', marks=needs_cuda),
    ]
)
def operator(request: pytest.FixtureRequest) -> Operator:
    """Every backend, and the CUDA kernels' source on the CPU, as a function of tensors on the CPU."""
    if request.param == 'cuda on cpu':
        request.getfixturevalue('cuda_on_cpu').draw_order()
        return OnCPU.apply
    run = partial(log_cpb_table, backend=request.param)
    if request.param == 'cuda':
        return lambda *tensors: run(*(tensor.cuda() for tensor in tensors)).cpu()
    return run


def make_arguments(
    rows: int = 5, columns: int = 37, hidden: int = 10, heads: int = 3, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    shapes = ((rows, hidden), (columns, hidden), (heads, hidden), (heads,))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def written_out(
    vertical: torch.Tensor, horizontal: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    hidden = (vertical[:, None] + horizontal[None]).clamp(min=0)
    return torch.einsum('rck,hk->hrc', hidden, weight) + bias[:, None, None]


def values_and_gradients(operator: Operator, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    inputs = [tensor.detach().requires_grad_() for tensor in arguments]
    table = operator(*inputs)
    weights = torch.linspace(-1, 1, table.numel(), dtype=table.dtype).view_as(table)
    return [table.detach(), *torch.autograd.grad(table, inputs, weights)]


SIZES = [
    dict(),
    dict(rows=1, columns=1, hidden=1, heads=1),
    dict(columns=64, hidden=130, heads=9),
    dict(rows=70, columns=3, hidden=33, heads=4),  # more rows than columns
]


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_equals_the_formula(sizes: dict, operator: Operator) -> None:
    arguments = make_arguments(**sizes)
    wanted = values_and_gradients(written_out, arguments)
    torch.testing.assert_close(values_and_gradients(operator, arguments), wanted)


@pytest.mark.parametrize('empty', ['rows', 'columns', 'hidden', 'heads'])
def test_empty(empty: str, operator: Operator) -> None:
    arguments = make_arguments(**{empty: 0})
    wanted = values_and_gradients(written_out, arguments)
    torch.testing.assert_close(values_and_gradients(operator, arguments), wanted)


def test_gradients_are_those_of_finite_differences(backend: str) -> None:
    inputs = [tensor.requires_grad_() for tensor in make_arguments()]
    assert torch.autograd.gradcheck(lambda *tensors: log_cpb_table(*tensors, backend=backend), inputs)


def test_float32_agrees_over_many_hidden_units(operator: Operator) -> None:
    arguments = make_arguments(rows=40, columns=33, hidden=512, heads=12, dtype=torch.float32)
    wanted = values_and_gradients(written_out, [tensor.double() for tensor in arguments])
    for result, want in zip(values_and_gradients(operator, arguments), wanted, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), want, rtol=0, atol=2e-6 * want.abs().max().item())


def test_nan_propagates(operator: Operator) -> None:
    vertical, horizontal, weight, bias = make_arguments()
    vertical[2, 4] = float('nan')
    table = operator(vertical, horizontal, weight, bias)
    assert table[:, 2].isnan().all()
    assert table.isnan().sum() == table[:, 2].numel()


def test_memory_layout_does_not_matter(operator: Operator) -> None:
    arguments = make_arguments(hidden=9)
    strided = [tensor.T.contiguous().T for tensor in arguments[:3]]
    assert not any(tensor.is_contiguous() for tensor in strided)
    shifted = [torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape) for tensor in arguments]
    wanted = values_and_gradients(operator, arguments)
    torch.testing.assert_close(values_and_gradients(operator, [*strided, arguments[3]]), wanted)
    torch.testing.assert_close(values_and_gradients(operator, shifted), wanted)


def test_chunks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_arguments()
    monkeypatch.setattr(log_cpb, 'MAX_HIDDEN_PER_CHUNK', 2 * 37 * 10)  # two rows at a time
    torch.testing.assert_close(log_cpb_table(*arguments, backend='reference'), written_out(*arguments))


def test_the_same_in_any_order_of_the_threads(cuda_on_cpu: CUDAOnCPU) -> None:
    arguments = make_arguments(rows=9, columns=40, hidden=70, heads=5, dtype=torch.float32)
    results = []
    for _ in range(2):
        cuda_on_cpu.draw_order()
        results.append(values_and_gradients(OnCPU.apply, arguments))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_at_most_three_launches_forward_and_backward(cuda_on_cpu: CUDAOnCPU) -> None:
    # The size of stage 4 at 224 x 224; no loop of the operator depends on it.
    inputs = [tensor.requires_grad_() for tensor in make_arguments(13, 13, 512, 24, torch.float32)]
    before = cuda_on_cpu.operators.launches()
    table = OnCPU.apply(*inputs)
    assert cuda_on_cpu.operators.launches() == before + 1
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        torch.autograd.grad(table, inputs, torch.ones_like(table))
    # What PyTorch launches for the sums over rows and of the bias; copies for a contiguous layout would count, too.
    sums = [event for event in trace.events() if event.name in ('aten::sum', 'aten::clone')]
    assert cuda_on_cpu.operators.launches() - before - 1 + len(sums) <= 3
    assert len(sums) == 2


@pytest.mark.every_kernel
def test_every_barrier_is_needed(cuda_on_cpu: CUDAOnCPU) -> None:
    arguments = make_arguments(rows=9, columns=40, hidden=70, heads=5)
    places = barriers_in(KERNELS)
    assert len(places) == 4
    for place in places:
        cuda_on_cpu.draw_order()
        with (
            cuda_on_cpu.without_barrier(place),
            pytest.raises(RuntimeError, match='without a barrier|uninitialised'),
        ):
            values_and_gradients(OnCPU.apply, arguments)


@needs_library
def test_operator_is_registered_as_torch_expects() -> None:
    inputs = [tensor.requires_grad_() for tensor in make_arguments(dtype=torch.float32)]
    torch.library.opcheck(torch.ops.bioattn_mm.log_cpb_table.default, inputs)


@needs_cuda
def test_operator_is_registered_as_torch_expects_on_a_gpu() -> None:
    inputs = [tensor.cuda().requires_grad_() for tensor in make_arguments(dtype=torch.float32)]
    torch.library.opcheck(torch.ops.bioattn_mm.log_cpb_table.default, inputs)
