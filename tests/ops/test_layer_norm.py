"""LayerNorm and what is before it in one operator, against PyTorch: residuals, and GELU with pooling."""

from collections.abc import Callable

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
# Tensors, and of `gelu_pool_norm` the grid.
Inputs = list[Tensor | tuple[int, int] | None]
Run = Callable[..., tuple[Tensor, ...]]


class AddNorm(torch.autograd.Function):
    """The CUDA kernels of `add_norm`, run on the CPU."""

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


class GELUPoolNorm(torch.autograd.Function):
    """The CUDA kernels of `gelu_pool_norm`, run on the CPU."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, x_bias: Tensor, weight: Tensor, bias: Tensor, grid: tuple) -> tuple:
        output, *others = torch.ops.kernels_on_cpu.gelu_pool_norm(x, x_bias, weight, bias, *grid, EPS)
        ctx.save_for_backward(x, x_bias, *others, weight)
        return (output,)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *torch.ops.kernels_on_cpu.gelu_pool_norm_backward(grad, *ctx.saved_tensors), None


EMULATED = dict(add_norm=AddNorm.apply, gelu_pool_norm=GELUPoolNorm.apply)


def run(name: str, *inputs: object, backend: str | None = 'reference') -> tuple[Tensor, ...]:
    """An operator of the package, with all its results."""
    if name == 'gelu_pool_norm':
        *tensors, grid = inputs
        return (gelu_pool_norm(*tensors, grid, EPS, backend),)
    x, branch, weight, bias, factor, branch_bias = inputs
    return add_norm(x, branch, weight, bias, EPS, factor, branch_bias, backend)


def make_inputs(
    name: str,
    grid: tuple[int, int] = (4, 9),
    pooled: tuple[int, int] = (2, 3),
    channels: int = 6,
    dtype: torch.dtype = torch.float32,
    batch: int = 2,
) -> Inputs:
    """x, branch, weight, bias, factor, which drops the first image's branch, and branch_bias; or x and parameters."""
    tokens, parameter = (batch, *grid, channels), (channels,)
    shapes = [tokens, tokens, *[parameter] * 3] if name == 'add_norm' else [tokens, *[parameter] * 3]
    tensors = [(0.5 + torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]
    if name == 'gelu_pool_norm':
        return [*tensors, pooled]
    return [*tensors[:4], 1.25 * (torch.arange(batch) > 0), tensors[4]]


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The inputs with other tensors, which need a gradient where the inputs do."""
    return [function(t.detach()).requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t for t in inputs]


def results(inputs: Inputs, run: Run, first: int = 0) -> list[Tensor]:
    """The results, and the gradients of the sums of those from `first` on, with weights from -1 to 1."""
    outputs = run(*inputs)
    weights = torch.linspace(-1, 1, outputs[0].numel()).view_as(outputs[0]).to(outputs[0])
    leaves = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
    used = outputs[first:]
    return [*outputs, *torch.autograd.grad(used, leaves, [weights, weights.flip(3)][: len(used)])]


def check_against_pytorch(name: str, inputs: Inputs, kernels: Run, **options: int) -> None:
    wanted = results(map_tensors(Tensor.double, inputs), lambda *tensors: run(name, *tensors), **options)
    for result, want in zip(results(inputs, kernels, **options), wanted, strict=True):
        assert result.dtype == inputs[0].dtype
        largest = want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(result.double(), want, rtol=0, atol=TOLERANCE[result.dtype] * max(largest, 1))


@pytest.fixture(params=ON_CUDA)
def operator(request: pytest.FixtureRequest) -> Callable[[str], Run]:
    """Of a name: the operator on a GPU, or the CUDA kernels' source on the CPU, as a function of CPU tensors."""
    if request.param == 'cuda on cpu':
        request.getfixturevalue('cuda_on_cpu').draw_order()
        return EMULATED.__getitem__

    def of_name(name: str) -> Run:
        return lambda *inputs: tuple(
            result.cpu()
            for result in run(name, *(t.cuda() if isinstance(t, Tensor) else t for t in inputs), backend='cuda')
        )

    return of_name


every_operator = pytest.mark.parametrize('name', EMULATED)


@pytest.mark.parametrize(
    ('name', 'sizes'),
    [
        ('add_norm', dict(grid=(1, 1), channels=2)),
        ('add_norm', dict(grid=(3, 5), dtype=torch.float16)),
        ('add_norm', dict(grid=(3, 5), dtype=torch.bfloat16, channels=70)),
        ('add_norm', dict(grid=(5, 9), channels=64, batch=1)),
        ('add_norm', dict(grid=(1, 3), channels=1030, batch=3)),  # more than a block with eight warps has memory for
        ('add_norm', dict(batch=0)),
        ('gelu_pool_norm', dict(grid=(1, 1), pooled=(1, 1), channels=4)),
        ('gelu_pool_norm', dict(dtype=torch.float16)),
        ('gelu_pool_norm', dict(dtype=torch.bfloat16, channels=70)),
        ('gelu_pool_norm', dict(grid=(8, 6), pooled=(2, 2), channels=64)),  # more tokens in a cell than warps
        ('gelu_pool_norm', dict(pooled=(4, 9), batch=1)),  # cells of one token
        ('gelu_pool_norm', dict(batch=0)),
    ],
    ids=str,
)
def test_equals_pytorch(name: str, sizes: dict, operator: Callable[[str], Run]) -> None:
    check_against_pytorch(name, make_inputs(name, **sizes), operator(name))


def test_without_what_may_be_left_out(operator: Callable[[str], Run]) -> None:
    inputs = make_inputs('add_norm')
    check_against_pytorch('add_norm', [*inputs[:4], None, None], operator('add_norm'))
    check_against_pytorch('add_norm', inputs, operator('add_norm'), first=1)  # the sum is not used


@needs_library
@pytest.mark.parametrize(
    'sizes',
    [
        dict(grid=(1, 1), channels=16),
        dict(grid=(5, 7), channels=1030),  # several blocks of tokens, and vectors that overlap
        dict(channels=70, dtype=torch.bfloat16),
        dict(batch=0, channels=16),
    ],
    ids=str,
)
def test_the_kernels_of_the_cpu(sizes: dict) -> None:
    def on_the_cpu(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        return run('add_norm', *inputs, backend='cpu')

    inputs = make_inputs('add_norm', **sizes)
    check_against_pytorch('add_norm', inputs, on_the_cpu)
    check_against_pytorch('add_norm', [*inputs[:4], None, None], on_the_cpu)
    check_against_pytorch('add_norm', inputs, on_the_cpu, first=1)


@every_operator
def test_any_memory_layout(name: str, operator: Callable[[str], Run]) -> None:
    inputs = make_inputs(name, dtype=torch.bfloat16)
    wanted = results(inputs, operator(name))
    for layout in (
        lambda t: torch.stack((t, t), -1)[..., 0],
        lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
    ):
        got = results(map_tensors(layout, inputs), operator(name))
        assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


@every_operator
def test_the_same_in_any_order_of_the_threads(name: str, cuda_on_cpu: CUDAOnCPU) -> None:
    inputs = make_inputs(name, (6, 6), (2, 2))
    cuda_on_cpu.check_any_order(lambda: results(inputs, EMULATED[name]))


@pytest.mark.every_kernel
def test_every_barrier_is_needed(cuda_on_cpu: CUDAOnCPU) -> None:
    def run_both() -> None:
        for name, kernels in EMULATED.items():
            results(make_inputs(name, (6, 6), (2, 2)), kernels)

    cuda_on_cpu.check_that_barriers_are_needed(3, run_both, KERNELS, DEVICE)


@needs_library
@pytest.mark.parametrize(
    ('name', 'of_cpu', 'sizes', 'message'),
    [
        (
            'add_norm',
            'on the CPU takes 16 channels or more and no float16, got 6 of torch.float32',
            dict(channels=5),
            'add_norm on CUDA takes an even number of channels up to 4096, got 5',
        ),
        (
            'gelu_pool_norm',
            'is compiled for CUDA alone',
            dict(pooled=(3, 3)),
            r'takes a grid that divides that of x, got \(3, 3\) and \(4, 9\)',
        ),
    ],
)
def test_what_kernels_take(
    name: str, of_cpu: str, sizes: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without data stand for those on a GPU."""
    inputs = make_inputs(name)
    for result, want in zip(run(name, *inputs, backend=None), run(name, *inputs), strict=True):
        assert torch.equal(result, want)
    with pytest.raises(ValueError, match=f"'cpu' cannot run: {name} {of_cpu}"):
        run(name, *inputs, backend='cpu')
    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)

    def on_meta(*inputs: object) -> tuple[Tensor, ...]:
        return run(name, *inputs, backend='meta')

    meta = results(map_tensors(lambda t: t.to('meta'), inputs), on_meta)
    assert [t.shape for t in meta] == [t.shape for t in results(inputs, lambda *tensors: run(name, *tensors))]
    with pytest.raises(ValueError, match=message):
        on_meta(*map_tensors(lambda t: t.to('meta'), make_inputs(name, **sizes)))
