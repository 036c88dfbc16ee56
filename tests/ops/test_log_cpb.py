"""The table of the log-spaced position bias against its formula."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bioattn_mm.ops import log_cpb, log_cpb_table
from bioattn_mm.ops.samples import make_log_cpb_table
from bioattn_mm.systems.transnext import LogCPB
from tests.ops.conftest import BACKENDS
from tests.ops.cuda_on_cpu import CSRC, CUDAOnCPU, function_of

KERNELS = CSRC / 'cuda' / 'log_cpb_cuda.cu'
ON_CPU = function_of('log_cpb_table', saved=5, without_gradient=2)  # the CUDA kernels, run on the CPU
Operator = Callable[..., torch.Tensor]


class OperatorCounter(TorchDispatchMode):
    """Counts what PyTorch itself would launch: operators but views, empty tensors and what computes no tensor.

    The emulation copies what the kernels read between its guard pages.
    """

    WITHOUT_LAUNCH = ('aten::empty.memory_format', 'aten::copy_', 'aten::promote_types')

    def __init__(self) -> None:
        super().__init__()
        self.operators = Counter()

    def __torch_dispatch__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if not func.is_view and func.name() not in self.WITHOUT_LAUNCH:
            self.operators[func.name()] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=BACKENDS)
def operator(request: pytest.FixtureRequest) -> Operator:
    """Every backend, and the CUDA kernels' source on the CPU, as a function of tensors on the CPU."""
    if request.param == 'cuda on cpu':
        request.getfixturevalue('cuda_on_cpu').draw_order()
        return ON_CPU
    run = partial(log_cpb_table, backend=request.param)
    if request.param == 'cuda':
        return lambda *tensors: run(*(tensor.cuda() for tensor in tensors)).cpu()
    return run


def make_arguments(dtype: torch.dtype = torch.float64, **sizes: int) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in make_log_cpb_table(**dict(rows=5, columns=37, hidden=10) | sizes)]


def written_out(
    vertical: torch.Tensor,
    horizontal: torch.Tensor,
    hidden_weight: torch.Tensor,
    hidden_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    if weight.dim() == 3:
        mlps = zip(hidden_weight, hidden_bias, weight, bias)
        return torch.stack([written_out(vertical, horizontal, *layers) for layers in mlps])
    pairs = torch.cartesian_prod(vertical, horizontal).view(len(vertical), len(horizontal), 2)
    hidden = (pairs @ hidden_weight.T + hidden_bias).clamp(min=0)
    return torch.einsum('rck,hk->hrc', hidden, weight) + bias[:, None, None]


def values_and_gradients(operator: Operator, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    parameters = [tensor.detach().requires_grad_() for tensor in arguments[2:]]
    table = operator(*arguments[:2], *parameters)
    weights = torch.linspace(-1, 1, table.numel(), dtype=table.dtype).view_as(table)
    return [table.detach(), *torch.autograd.grad(table, parameters, weights)]


SIZES = [
    dict(),
    dict(rows=1, columns=1, hidden=1, heads=1),
    dict(columns=64, hidden=130, heads=9),
    dict(rows=70, columns=3, hidden=33, heads=4),  # more rows than columns
    dict(rows=9, hidden=33, heads=5, mlps=3),
    *(dict.fromkeys([empty], 0) for empty in ('rows', 'columns', 'hidden', 'heads')),
]


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_equals_the_formula(sizes: dict, operator: Operator) -> None:
    arguments = make_arguments(**sizes)
    wanted = values_and_gradients(written_out, arguments)
    torch.testing.assert_close(values_and_gradients(operator, arguments), wanted)


def test_coordinates_in_any_order(operator: Operator) -> None:
    """Also repeated ones, and units that are active in all columns, in none, or in some at either end."""
    arguments = make_arguments(columns=40, hidden=12, heads=20)
    arguments[1] = arguments[1][torch.arange(40) * 17 % 40].round(decimals=1)
    hidden_weight, hidden_bias = arguments[2:4]
    hidden_weight[:4, 1] = 0
    hidden_bias[:2], hidden_bias[2:4] = 9, -9
    wanted = values_and_gradients(written_out, arguments)
    torch.testing.assert_close(values_and_gradients(operator, arguments), wanted)


def test_float32_agrees_over_many_hidden_units(operator: Operator) -> None:
    arguments = make_arguments(rows=40, columns=33, hidden=512, heads=12, dtype=torch.float32)
    wanted = values_and_gradients(written_out, [tensor.double() for tensor in arguments])
    for result, want in zip(values_and_gradients(operator, arguments), wanted, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), want, rtol=0, atol=2e-6 * want.abs().max().item())


def test_nan_propagates(operator: Operator) -> None:
    arguments = make_arguments()
    arguments[0][2] = float('nan')
    table = operator(*arguments)
    assert table[:, 2].isnan().all()
    assert table.isnan().sum() == table[:, 2].numel()
    arguments = make_arguments()
    arguments[4][1, 3] = float('nan')
    assert operator(*arguments).isnan().any((1, 2)).tolist() == [False, True, False]


def test_memory_layout_does_not_matter(operator: Operator) -> None:
    arguments = make_arguments(hidden=9)
    strided = [torch.stack((tensor, tensor), -1)[..., 0] for tensor in arguments]
    assert not any(tensor.is_contiguous() for tensor in strided)
    shifted = [torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape) for tensor in arguments]
    wanted = values_and_gradients(operator, arguments)
    torch.testing.assert_close(values_and_gradients(operator, strided), wanted)
    torch.testing.assert_close(values_and_gradients(operator, shifted), wanted)


def test_chunks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_arguments()
    monkeypatch.setattr(log_cpb, 'MAX_HIDDEN_PER_CHUNK', 2 * 37 * 10)  # two rows at a time
    torch.testing.assert_close(log_cpb_table(*arguments, backend='reference'), written_out(*arguments))


def test_the_same_in_any_order_of_the_threads(cuda_on_cpu: CUDAOnCPU) -> None:
    arguments = make_arguments(rows=9, columns=40, hidden=70, heads=5, dtype=torch.float32)
    cuda_on_cpu.check_any_order(lambda: values_and_gradients(ON_CPU, arguments))


def test_three_launches_of_a_layer_forward_and_backward(
    cuda_on_cpu: CUDAOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_on_cpu.draw_order()
    monkeypatch.setattr('bioattn_mm.systems.transnext.position_bias.log_cpb_table', ON_CPU)
    layer, grids = LogCPB(24, (7, 7)), ((5, 7), (5, 7))
    layer.table(*grids)  # makes the coordinates, which are kept for each size
    before = cuda_on_cpu.operators.launches()
    with OperatorCounter() as forward:
        table = layer.table(*grids)[0]
    grad, middle = torch.ones_like(table), cuda_on_cpu.operators.launches()
    with OperatorCounter() as backward:
        table.backward(grad)
    assert forward.operators == backward.operators == {}
    assert (middle - before, cuda_on_cpu.operators.launches() - middle) == (1, 2)
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.every_kernel
def test_every_barrier_is_needed(cuda_on_cpu: CUDAOnCPU) -> None:
    arguments = make_arguments(rows=9, columns=40, hidden=70, heads=5)
    cuda_on_cpu.check_that_barriers_are_needed(5, lambda: values_and_gradients(ON_CPU, arguments), KERNELS)
