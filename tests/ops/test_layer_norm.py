"""LayerNorm and what is before it in one operator, against PyTorch: residuals, and GELU with pooling."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from bioattn_mm.ops import add_norm, backends, gelu_pool_norm
from tests.ops.conftest import ON_CUDA, needs_library
from tests.ops.cuda_on_cpu import CSRC, DEVICE, CUDAOnCPU

KERNELS = CSRC / 'cuda' / 'layer_norm_cuda.cu'
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
EPS = 1e-3
Operator = Callable[..., tuple[Tensor, Tensor]]


class OnCPU(torch.autograd.Function):
    """The CUDA kernels, run on the CPU."""

    @staticmethod
    def forward(ctx: FunctionCtx, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        x, branch, weight, bias, factor, branch_bias = inputs
        output, total, *statistics = torch.ops.kernels_on_cpu.add_norm(
            x, branch, branch_bias, factor, weight, bias, EPS
        )
        ctx.save_for_backward(total, *statistics, factor, weight)
        ctx.set_materialize_grads(False)
        return total, output

    @staticmethod
    def backward(ctx: FunctionCtx, grad_sum: Tensor | None, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = torch.ops.kernels_on_cpu.add_norm_backward(grad, grad_sum, *ctx.saved_tensors)
        x, branch, branch_bias, weight, bias = gradients
        return x, branch, weight, bias, None, branch_bias if ctx.needs_input_grad[5] else None


@pytest.fixture(params=ON_CUDA)
def operator(request: pytest.FixtureRequest) -> Operator:
    """The operator on a GPU, and the CUDA kernels' source on the CPU, as a function of tensors on the CPU."""
    if request.param == 'cuda on cpu':
        request.getfixturevalue('cuda_on_cpu').draw_order()
        return OnCPU.apply

    def run(*inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = [None if tensor is None else tensor.cuda() for tensor in inputs]
        return tuple(result.cpu() for result in reference(*inputs, backend='cuda'))

    return run


def reference(
    x: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor,
    factor: Tensor | None,
    branch_bias: Tensor | None,
    backend: str = 'reference',
) -> tuple[Tensor, Tensor]:
    return add_norm(x, branch, weight, bias, EPS, factor, branch_bias, backend)


def make_inputs(
    grid: tuple[int, int] = (3, 5), channels: int = 6, dtype: torch.dtype = torch.float32, batch: int = 2
) -> list[Tensor]:
    """x, branch, weight, bias, factor and branch_bias; the first image's branch is dropped."""
    shapes = [(batch, *grid, channels)] * 2 + [(channels,)] * 2
    tensors = [(0.5 + torch.randn(shape)).to(dtype).requires_grad_() for shape in (*shapes, (channels,))]
    return [*tensors[:4], 1.25 * (torch.arange(batch) > 0), tensors[4]]


def results(inputs: list[Tensor | None], operator: Operator, with_sum: bool = True) -> list[Tensor]:
    """Both outputs, and the gradients of their sum, or of that of the second, with weights from -1 to 1."""
    outputs = operator(*inputs)
    weights = torch.linspace(-1, 1, outputs[0].numel()).view_as(outputs[0]).to(outputs[0])
    leaves = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    used = outputs if with_sum else outputs[1:]
    return [*outputs, *torch.autograd.grad(used, leaves, [weights, weights.flip(3)][: len(used)])]


def check_against_pytorch(inputs: list[Tensor | None], operator: Operator, **options: bool) -> None:
    exact = [None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    exact[4] = inputs[4] if inputs[4] is None else inputs[4].double()
    got, wanted = results(inputs, operator, **options), results(exact, reference, **options)
    for result, want in zip(got, wanted, strict=True):
        assert result.dtype == inputs[0].dtype
        largest = want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(result.double(), want, rtol=0, atol=TOLERANCE[result.dtype] * max(largest, 1))


@pytest.mark.parametrize(
    'sizes',
    [
        dict(grid=(1, 1), channels=2),
        dict(dtype=torch.float16),
        dict(dtype=torch.bfloat16, channels=70),
        dict(grid=(5, 9), channels=64, batch=1),
        dict(grid=(1, 3), channels=1030, batch=3),  # more than a block with eight warps has shared memory for
        dict(batch=0),
    ],
    ids=str,
)
def test_equals_pytorch(sizes: dict, operator: Operator) -> None:
    check_against_pytorch(make_inputs(**sizes), operator)


def test_without_what_may_be_left_out(operator: Operator) -> None:
    check_against_pytorch([*make_inputs()[:4], None, None], operator)
    check_against_pytorch(make_inputs(), operator, with_sum=False)


def test_any_memory_layout(operator: Operator) -> None:
    inputs = make_inputs(dtype=torch.bfloat16)
    wanted = results(inputs, operator)
    strided = [torch.stack((tensor, tensor), -1)[..., 0] for tensor in inputs]
    shifted = [torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape) for tensor in inputs]
    for others in (strided, shifted):
        leaves = [t.detach().requires_grad_(old.requires_grad) for t, old in zip(others, inputs)]
        assert all(torch.equal(*pair) for pair in zip(results(leaves, operator), wanted, strict=True))


def test_the_same_in_any_order_of_the_threads(cuda_on_cpu: CUDAOnCPU) -> None:
    inputs, both = make_inputs((5, 9)), []
    for _ in range(2):
        cuda_on_cpu.draw_order()
        both.append(results(inputs, OnCPU.apply))
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


@pytest.mark.every_kernel
def test_every_barrier_is_needed(cuda_on_cpu: CUDAOnCPU) -> None:
    def run() -> None:
        results(make_inputs((5, 9)), OnCPU.apply)
        pool_results((2, 2), make_pool_inputs((6, 6)), PoolOnCPU.apply)

    cuda_on_cpu.check_that_barriers_are_needed(3, run, KERNELS, DEVICE)


class PoolOnCPU(torch.autograd.Function):
    """The CUDA kernels of `gelu_pool_norm`, run on the CPU."""

    @staticmethod
    def forward(ctx: FunctionCtx, grid: tuple[int, int], *inputs: Tensor) -> Tensor:
        x, x_bias, weight, bias = inputs
        output, *others = torch.ops.kernels_on_cpu.gelu_pool_norm(x, x_bias, weight, bias, *grid, EPS)
        ctx.save_for_backward(x, x_bias, *others, weight)
        return output

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *torch.ops.kernels_on_cpu.gelu_pool_norm_backward(grad, *ctx.saved_tensors)


def pool_reference(grid: tuple[int, int], *inputs: Tensor, backend: str = 'reference') -> Tensor:
    return gelu_pool_norm(*inputs, grid, EPS, backend)


@pytest.fixture(params=ON_CUDA)
def pool_operator(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """As `operator`, for `gelu_pool_norm`."""
    if request.param == 'cuda on cpu':
        request.getfixturevalue('cuda_on_cpu').draw_order()
        return PoolOnCPU.apply
    return lambda grid, *inputs: pool_reference(grid, *(tensor.cuda() for tensor in inputs), backend='cuda').cpu()


def make_pool_inputs(
    grid: tuple[int, int] = (4, 9), channels: int = 6, dtype: torch.dtype = torch.float32, batch: int = 2
) -> list[Tensor]:
    """x, x_bias, weight and bias."""
    x, parameters = 2 * torch.randn(batch, *grid, channels), torch.randn(3, channels)
    return [tensor.to(dtype).requires_grad_() for tensor in (x, *parameters)]


def pool_results(grid: tuple[int, int], inputs: list[Tensor], operator: Callable[..., Tensor]) -> list[Tensor]:
    output = operator(grid, *inputs)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).to(output)
    return [output, *torch.autograd.grad(output, inputs, weights)]


@pytest.mark.parametrize(
    ('pooled', 'sizes'),
    [
        ((1, 1), dict(grid=(1, 1), channels=4)),
        ((2, 3), dict(dtype=torch.float16)),
        ((2, 3), dict(dtype=torch.bfloat16, channels=70)),
        ((2, 2), dict(grid=(8, 6), channels=64)),  # more tokens in a cell than warps
        ((4, 9), dict(batch=1)),  # cells of one token
        ((2, 3), dict(batch=0)),
    ],
    ids=str,
)
def test_pooling_equals_pytorch(pooled: tuple[int, int], sizes: dict, pool_operator: Callable[..., Tensor]) -> None:
    inputs = make_pool_inputs(**sizes)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    got, wanted = pool_results(pooled, inputs, pool_operator), pool_results(pooled, exact, pool_reference)
    for result, want in zip(got, wanted, strict=True):
        assert result.dtype == inputs[0].dtype
        largest = want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(result.double(), want, rtol=0, atol=TOLERANCE[result.dtype] * max(largest, 1))


def test_pooling_is_the_same_in_any_order_of_the_threads(cuda_on_cpu: CUDAOnCPU) -> None:
    inputs, both = make_pool_inputs((6, 6)), []
    for _ in range(2):
        cuda_on_cpu.draw_order()
        both.append(pool_results((2, 2), inputs, PoolOnCPU.apply))
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


@needs_library
def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs()
    # Without asking for a backend, the CPU has the formula.
    for result, want in zip(add_norm(*inputs[:4], EPS, *inputs[4:]), reference(*inputs), strict=True):
        torch.testing.assert_close(result, want, rtol=0, atol=0)
    with pytest.raises(ValueError, match="'cpu' cannot run: add_norm is compiled for CUDA alone"):
        reference(*inputs, backend='cpu')
    for index, wrong, message in (
        (0, torch.zeros(2, 3, 6), r'x must be \(B, H, W, C\), got shape \(2, 3, 6\)'),
        (0, torch.zeros(2, 3, 5, 6, dtype=torch.int64), 'x must be one of float16, .* got int64'),
        (1, torch.zeros(2, 3, 4, 6), r'branch must have shape \(2, 3, 5, 6\)'),
        (2, torch.zeros(6).double(), 'weight must be torch.float32 to fit x, got torch.float64'),
        (4, torch.zeros(2).double(), 'factor must be torch.float32'),
        (5, torch.zeros(5), r'branch_bias must have shape \(6,\)'),
    ):
        with pytest.raises(ValueError, match=message):
            reference(*inputs[:index], wrong, *inputs[index + 1 :])

    # Tensors without data stand for those on a GPU.
    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)
    meta = [tensor.detach().to('meta').requires_grad_(tensor.requires_grad) for tensor in inputs]
    shapes = [result.shape for result in results(meta, lambda *tensors: reference(*tensors, backend='meta'))]
    assert shapes == [result.shape for result in results(inputs, reference)]
    with pytest.raises(ValueError, match='add_norm on CUDA takes an even number of channels up to 4096, got 5'):
        odd = [tensor.to('meta') for tensor in make_inputs(channels=5)]
        reference(*odd, backend='meta')


@needs_library
def test_arguments_of_pooling(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, pooled = make_pool_inputs(), (2, 3)
    assert torch.equal(gelu_pool_norm(*inputs, pooled, EPS), pool_reference(pooled, *inputs))
    for index, wrong, message in (
        (0, torch.zeros(2, 0, 3, 6), r'x must be \(B, H, W, C\), got shape \(2, 0, 3, 6\)'),
        (1, torch.zeros(5), r'x_bias must have shape \(6,\)'),
        (2, torch.zeros(6).double(), 'weight must be torch.float32 to fit x, got torch.float64'),
    ):
        with pytest.raises(ValueError, match=message):
            pool_reference(pooled, *inputs[:index], wrong, *inputs[index + 1 :])
    with pytest.raises(ValueError, match='grid must be 1 x 1 or larger, got 0 x 3'):
        gelu_pool_norm(*inputs, (0, 3), EPS)

    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)
    meta = [tensor.detach().to('meta').requires_grad_() for tensor in inputs]
    results_of_meta = pool_results(pooled, meta, partial(pool_reference, backend='meta'))
    wanted = pool_results(pooled, inputs, pool_reference)
    assert [result.shape for result in results_of_meta] == [result.shape for result in wanted]
    with pytest.raises(ValueError, match=r'takes a grid that divides that of x, got \(3, 3\) and \(4, 9\)'):
        pool_reference((3, 3), *meta, backend='meta')
