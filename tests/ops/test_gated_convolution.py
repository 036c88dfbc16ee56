"""The operator of ConvGLU's gate against PyTorch."""

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import gated_convolution
from tests.ops.conftest import Place, needs_library
from tests.ops.kernels import check, inputs_of

GATE = 'gate after a linear layer'


def run(place: Place, *inputs: Tensor) -> Tensor:
    return gated_convolution(*(tensor.to(place.device) for tensor in inputs), backend=place.backend).cpu()


@needs_library
@pytest.mark.parametrize('grid', [(1, 1), (2, 1), (1, 6), (9, 37), (67, 34)], ids=str)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_equals_pytorch(grid: tuple[int, int], dtype: torch.dtype) -> None:
    check(GATE, inputs_of(GATE, dtype, grid=grid, channels=32), Place('cpu'))


def test_gelu_of_extreme_values(place: Place) -> None:
    x = torch.tensor([-100.0, -10, -1e-6, 0, 1e-6, 10, 100, float('inf'), float('nan')]).view(1, 1, -1, 1)
    x = torch.cat([x.expand(-1, -1, -1, 16), torch.ones(1, 1, 9, 16)], dim=-1).requires_grad_()
    weight = torch.zeros(16, 1, 3, 3)
    weight[:, :, 1, 1] = 1
    # The neighbours of infinity and NaN are NaN, as in PyTorch's convolution.
    output = run(place, x, weight, torch.zeros(16))[0, 0, :6, 0]
    grad = torch.autograd.grad(output.sum(), x)[0][0, 0, :5, 0]
    exact = x.detach()[0, 0, :6, 0].double().requires_grad_()
    want = torch.nn.functional.gelu(exact)
    (want_grad,) = torch.autograd.grad(want.sum(), exact)
    torch.testing.assert_close(output.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), want_grad[:-1], rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_nan_stays_nan(place: Place) -> None:
    x, weight, bias, _ = inputs_of(GATE, torch.bfloat16)
    x[0, 2, 3, 1] = float('nan')
    output = run(place, x, weight, bias)
    assert output[0, 1:4, 2:5, 1].isnan().all() and output.isnan().sum() == 9
