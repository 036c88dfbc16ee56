"""The operator of ConvGLU's gate against PyTorch."""

import pytest
import torch

from bioattn_mm.ops import gated_convolution, gated_convolution_reference
from tests.ops.conftest import check_any_number_of_threads, needs_library


def make_inputs(
    grid: tuple[int, int] = (5, 7), channels: int = 16, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    parameter_dtype = torch.promote_types(dtype, torch.float32)
    x = torch.randn(2, *grid, 2 * channels).to(dtype)
    weight = torch.randn(channels, 1, 3, 3, dtype=parameter_dtype)
    return [
        x.requires_grad_(),
        weight.requires_grad_(),
        torch.randn(channels, dtype=parameter_dtype).requires_grad_(),
        torch.randn(2 * channels, dtype=parameter_dtype).requires_grad_(),
    ]


def gate(*inputs: torch.Tensor, backend: str | None = None) -> torch.Tensor:
    """The operator with the bias of the layer before."""
    *inputs, x_bias = inputs
    return gated_convolution(*inputs, backend, x_bias)


def output_and_gradients(inputs: list[torch.Tensor], backend: str) -> list[torch.Tensor]:
    output = gate(*inputs, backend=backend)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).to(output)
    return [output, *torch.autograd.grad(output, inputs, weights)]


@needs_library
@pytest.mark.parametrize('grid', [(1, 1), (2, 1), (1, 6), (9, 37), (67, 34)], ids=str)
@pytest.mark.parametrize(
    ('dtype', 'tolerance'), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_equals_pytorch(grid: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    inputs = make_inputs(grid, 32, dtype)
    exact = output_and_gradients([t.detach().double().requires_grad_() for t in inputs], 'reference')
    for got, want, like in zip(output_and_gradients(inputs, 'cpu'), exact, [inputs[0], *inputs], strict=True):
        assert got.dtype == like.dtype
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * want.abs().max().item())


@needs_library
def test_gelu_of_extreme_values() -> None:
    x = torch.tensor([-100.0, -10, -1e-6, 0, 1e-6, 10, 100, float('inf'), float('nan')]).view(1, 1, -1, 1)
    x = torch.cat([x.expand(-1, -1, -1, 16), torch.ones(1, 1, 9, 16)], dim=-1)
    weight = torch.zeros(16, 1, 3, 3)
    weight[:, :, 1, 1] = 1
    # The neighbours of infinity and NaN are NaN, as in PyTorch's convolution.
    finite = slice(0, 6)
    got = gated_convolution(x, weight, torch.zeros(16), 'cpu')[0, 0, finite, 0]
    torch.testing.assert_close(got, torch.nn.functional.gelu(x[0, 0, finite, 0]), rtol=1e-6, atol=1e-6)


@needs_library
def test_nan_stays_nan() -> None:
    x, weight, bias, _ = make_inputs(dtype=torch.bfloat16)
    with torch.no_grad():
        x[0, 2, 3, 1] = float('nan')
        output = gated_convolution(x, weight, bias, 'cpu')
    assert output[0, 1:4, 2:5, 1].isnan().all()
    assert output.isnan().sum() == 9


@needs_library
def test_gradients() -> None:
    assert torch.autograd.gradcheck(lambda *inputs: gate(*inputs, backend='cpu'), make_inputs((2, 6)))


@needs_library
def test_is_the_same_for_any_number_of_threads() -> None:
    inputs = make_inputs((40, 9), dtype=torch.float32)
    check_any_number_of_threads(lambda: output_and_gradients(inputs, 'cpu'))


@needs_library
def test_operator_is_registered_as_torch_expects() -> None:
    x, weight, bias, x_bias = make_inputs(dtype=torch.float32)
    torch.library.opcheck(torch.ops.bioattn_mm.gated_convolution.default, [x, x_bias, weight, bias])


@pytest.mark.parametrize(('channels', 'dtype'), [(12, torch.float32), (16, torch.float16)])
def test_what_the_kernel_does_not_take_runs_in_pytorch(channels: int, dtype: torch.dtype) -> None:
    x, weight, bias, x_bias = make_inputs(channels=channels, dtype=dtype)
    want = gated_convolution_reference(x + x_bias.to(dtype), weight.to(dtype), bias.to(dtype))
    assert torch.equal(gate(x, weight, bias, x_bias), want)


@pytest.mark.parametrize(
    ('index', 'wrong', 'message'),
    [
        (0, torch.zeros(2, 5, 33), r'x must be \(B, H, W, 2 C\), got shape \(2, 5, 33\)'),
        (1, torch.zeros(16, 1, 5, 5).double(), r'weight must have shape \(16, 1, 3, 3\)'),
        (2, torch.zeros(16), 'bias must be torch.float64 to fit x, got torch.float32'),
        (3, torch.zeros(16).double(), r'x_bias must have shape \(32,\)'),
    ],
)
def test_arguments_that_do_not_fit(index: int, wrong: torch.Tensor, message: str) -> None:
    inputs = make_inputs()
    inputs[index] = wrong
    with pytest.raises(ValueError, match=message):
        gate(*inputs)
