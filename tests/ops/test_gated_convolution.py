"""The operator of ConvGLU's gate against PyTorch."""

import copy
from collections.abc import Callable

import pytest
import torch

from bioattn_mm.ops import backends, gated_convolution, gated_convolution_reference
from bioattn_mm.systems.transnext import ConvGLU
from tests.ops.conftest import Backend, needs_cuda, needs_library

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
Operator = Callable[..., torch.Tensor]


ON_CPU = pytest.param('cpu', marks=needs_library)


@pytest.fixture
def operator(any_backend: Backend) -> Operator:
    """Every backend, as a function of tensors on the CPU."""
    name, device = any_backend
    return lambda *inputs: gate(*(tensor.to(device) for tensor in inputs), backend=name).cpu()


def make_inputs(
    grid: tuple[int, int] = (5, 7), channels: int = 16, dtype: torch.dtype = torch.float64, batch: int = 2
) -> list[torch.Tensor]:
    """x, weight, bias and x_bias."""
    parameter_dtype = torch.promote_types(dtype, torch.float32)
    x = torch.randn(batch, *grid, 2 * channels).to(dtype)
    weight = torch.randn(channels, 1, 3, 3, dtype=parameter_dtype)
    return [
        x.requires_grad_(),
        weight.requires_grad_(),
        torch.randn(channels, dtype=parameter_dtype).requires_grad_(),
        torch.randn(2 * channels, dtype=parameter_dtype).requires_grad_(),
    ]


def gate(*inputs: torch.Tensor, backend: str | None = None) -> torch.Tensor:
    """The operator; its last input is the bias of the layer before, and may be missing."""
    return gated_convolution(*inputs[:3], backend, *inputs[3:])


def output_and_gradients(inputs: list[torch.Tensor], operator: Operator) -> list[torch.Tensor]:
    output = operator(*inputs)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).to(output)
    return [output, *torch.autograd.grad(output, inputs, weights)]


def check_against_pytorch(inputs: list[torch.Tensor], operator: Operator) -> None:
    """Values and gradients are those of the formula in float64."""
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    wanted = output_and_gradients(exact, lambda *tensors: gate(*tensors, backend='reference'))
    for got, want, like in zip(output_and_gradients(inputs, operator), wanted, [inputs[0], *inputs], strict=True):
        assert got.dtype == like.dtype
        assert got.shape == want.shape
        largest = want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCE[inputs[0].dtype] * largest)


@needs_library
@pytest.mark.parametrize('grid', [(1, 1), (2, 1), (1, 6), (9, 37), (67, 34)], ids=str)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_equals_pytorch(grid: tuple[int, int], dtype: torch.dtype) -> None:
    check_against_pytorch(make_inputs(grid, 32, dtype), lambda *inputs: gate(*inputs, backend='cpu'))


def test_gelu_of_extreme_values(operator: Operator) -> None:
    x = torch.tensor([-100.0, -10, -1e-6, 0, 1e-6, 10, 100, float('inf'), float('nan')]).view(1, 1, -1, 1)
    x = torch.cat([x.expand(-1, -1, -1, 16), torch.ones(1, 1, 9, 16)], dim=-1).requires_grad_()
    weight = torch.zeros(16, 1, 3, 3)
    weight[:, :, 1, 1] = 1
    # The neighbours of infinity and NaN are NaN, as in PyTorch's convolution.
    finite = slice(0, 6)
    output = operator(x, weight, torch.zeros(16))[0, 0, finite, 0]
    grad = torch.autograd.grad(output.sum(), x)[0][0, 0, : finite.stop - 1, 0]
    exact = x.detach()[0, 0, finite, 0].double().requires_grad_()
    want = torch.nn.functional.gelu(exact)
    want_grad = torch.autograd.grad(want.sum(), exact)[0][:-1]
    torch.testing.assert_close(output.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), want_grad, rtol=1e-6, atol=1e-6)


def test_nan_stays_nan(operator: Operator) -> None:
    x, weight, bias, _ = make_inputs(dtype=torch.bfloat16)
    with torch.no_grad():
        x[0, 2, 3, 1] = float('nan')
        output = operator(x, weight, bias)
    assert output[0, 1:4, 2:5, 1].isnan().all()
    assert output.isnan().sum() == 9


@pytest.mark.parametrize('device', [ON_CPU, pytest.param('cuda', marks=needs_cuda)])
def test_the_bias_of_the_layer_before_is_registered_as_torch_expects(device: str) -> None:
    inputs = [tensor.detach().to(device).requires_grad_() for tensor in make_inputs(dtype=torch.float32)]
    x, weight, bias, x_bias = inputs
    torch.library.opcheck(torch.ops.bioattn_mm.gated_convolution.default, [x, x_bias, weight, bias])


@needs_library
@pytest.mark.parametrize(
    ('device', 'channels', 'dtype', 'reason'),
    [
        ('cpu', 12, torch.float32, 'the CPU takes 16, 32, ... channels, got 12'),
        ('cpu', 16, torch.float16, 'the CPU takes bfloat16, float32 and float64, got float16'),
        # Tensors without data stand for those on a GPU.
        ('meta', 15, torch.float32, 'CUDA takes an even number of channels, got 15'),
        ('meta', 16, torch.float64, 'CUDA takes float32, float16 and bfloat16, got float64'),
    ],
)
def test_what_the_kernels_do_not_take_runs_in_pytorch(
    device: str, channels: int, dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)
    inputs = make_inputs(channels=channels, dtype=dtype)
    with pytest.raises(ValueError, match=f"'{device}' cannot run: gated_convolution on {reason}"):
        gate(*(tensor.to(device) for tensor in inputs), backend=device)
    output = gate(*(tensor.to(device) for tensor in inputs))
    assert output.shape == (2, 5, 7, channels)
    x, weight, bias, x_bias = inputs
    if device == 'cpu':
        assert torch.equal(
            output, gated_convolution_reference(x + x_bias.to(dtype), weight.to(dtype), bias.to(dtype))
        )


@needs_cuda
def test_layer_on_a_gpu_in_mixed_precision() -> None:
    layer, x = ConvGLU(24, 4), torch.randn(2, 9, 21, 24)
    with torch.no_grad():
        layer.fc1.bias.normal_()
    exact = copy.deepcopy(layer).double()
    want = exact.as_convolutions(x.double())
    want.square().sum().backward()
    layer.cuda()
    with torch.autocast('cuda', torch.bfloat16):
        output = layer(x.cuda())
    assert output.dtype == torch.bfloat16
    output.double().square().sum().backward()
    pairs = [(output, want), *((p.grad, q.grad) for p, q in zip(layer.parameters(), exact.parameters(), strict=True))]
    for got, wanted in pairs:
        torch.testing.assert_close(got.double().cpu(), wanted, rtol=0, atol=3e-2 * wanted.abs().max().item())
