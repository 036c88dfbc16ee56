"""The operator of ConvGLU's gate against PyTorch."""

import copy

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import backends, gated_convolution, gated_convolution_reference
from bioattn_mm.systems.transnext import ConvGLU
from tests.ops.conftest import Backend, needs_cuda, needs_library
from tests.ops.kernels import Place, check, gate, inputs_of

GATE = 'gate after a linear layer'


def run(backend: Backend, *inputs: Tensor) -> Tensor:
    return gated_convolution(*(tensor.to(backend.device) for tensor in inputs), backend=backend.name).cpu()


@needs_library
@pytest.mark.parametrize('grid', [(1, 1), (2, 1), (1, 6), (9, 37), (67, 34)], ids=str)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_equals_pytorch(grid: tuple[int, int], dtype: torch.dtype) -> None:
    check(GATE, inputs_of(GATE, dtype, grid=grid, channels=32), Place('cpu', 'cpu'))


def test_gelu_of_extreme_values(any_backend: Backend) -> None:
    x = torch.tensor([-100.0, -10, -1e-6, 0, 1e-6, 10, 100, float('inf'), float('nan')]).view(1, 1, -1, 1)
    x = torch.cat([x.expand(-1, -1, -1, 16), torch.ones(1, 1, 9, 16)], dim=-1).requires_grad_()
    weight = torch.zeros(16, 1, 3, 3)
    weight[:, :, 1, 1] = 1
    # The neighbours of infinity and NaN are NaN, as in PyTorch's convolution.
    output = run(any_backend, x, weight, torch.zeros(16))[0, 0, :6, 0]
    grad = torch.autograd.grad(output.sum(), x)[0][0, 0, :5, 0]
    exact = x.detach()[0, 0, :6, 0].double().requires_grad_()
    want = torch.nn.functional.gelu(exact)
    (want_grad,) = torch.autograd.grad(want.sum(), exact)
    torch.testing.assert_close(output.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), want_grad[:-1], rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_nan_stays_nan(any_backend: Backend) -> None:
    x, weight, bias, _ = inputs_of(GATE, torch.bfloat16)
    x[0, 2, 3, 1] = float('nan')
    output = run(any_backend, x, weight, bias)
    assert output[0, 1:4, 2:5, 1].isnan().all() and output.isnan().sum() == 9


@pytest.mark.parametrize('device', [pytest.param('cpu', marks=needs_library), pytest.param('cuda', marks=needs_cuda)])
def test_the_bias_of_the_layer_before_is_registered_as_torch_expects(device: str) -> None:
    x, weight, bias, x_bias = (tensor.to(device).requires_grad_() for tensor in inputs_of(GATE))
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
    inputs = [tensor.to(device) for tensor in inputs_of(GATE, dtype, channels=channels)]
    with pytest.raises(ValueError, match=f"'{device}' cannot run: gated_convolution on {reason}"):
        gate(*inputs, backend=device)
    output = gate(*inputs, backend=None)
    assert output.shape == (2, 5, 7, channels)
    x, *others = (tensor.to(dtype) for tensor in inputs)
    if device == 'cpu':
        assert torch.equal(output, gated_convolution_reference(x + others.pop(), *others))


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
