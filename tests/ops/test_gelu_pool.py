"""GELU and pooling in one pass against PyTorch's operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.ops import gelu_pool
from tests.ops.conftest import CAPABILITIES, capability, needs_library

Grid = tuple[int, int]
# Cells of the same size, of several sizes that overlap, as many as tokens, and more.
GRIDS = [((8, 12), (4, 3)), ((7, 10), (3, 4)), ((5, 3), (5, 3)), ((3, 4), (7, 5)), ((6, 9), (1, 1))]


def make_tokens(grid: Grid, channels: int = 24, dtype: torch.dtype = torch.float32, batch: int = 2) -> Tensor:
    return (2 * torch.randn(batch, *grid, channels)).to(dtype).requires_grad_()


def output_and_gradient(x: Tensor, grid: Grid, backend: str) -> list[Tensor]:
    output = gelu_pool(x, grid, backend)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).bfloat16().to(output)
    return [output, *torch.autograd.grad(output, x, weights)]


@needs_library
@pytest.mark.parametrize('channels', [16, 17, 72])
@pytest.mark.parametrize(('grid', 'pooled_grid'), GRIDS, ids=str)
@pytest.mark.parametrize(
    ('dtype', 'tolerance'), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.bfloat16, 2**-8)], ids=str
)
def test_equals_pytorch_in_float64(
    grid: Grid, pooled_grid: Grid, channels: int, dtype: torch.dtype, tolerance: float
) -> None:
    x = make_tokens(grid, channels, dtype)
    exact = output_and_gradient(x.detach().double().requires_grad_(), pooled_grid, 'reference')
    for name in CAPABILITIES:
        with capability(name):
            results = output_and_gradient(x, pooled_grid, 'cpu')
        for got, want in zip(results, exact, strict=True):
            assert got.dtype == dtype and got.shape == want.shape
            torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * max(1, want.abs().max().item()))


@pytest.mark.parametrize(('channels', 'dtype'), [(8, torch.float32), (24, torch.float16)], ids=str)
def test_what_the_kernel_does_not_take_runs_in_pytorch(channels: int, dtype: torch.dtype) -> None:
    x = make_tokens((4, 6), channels, dtype)
    want = F.adaptive_avg_pool2d(F.gelu(x).permute(0, 3, 1, 2), (2, 3)).permute(0, 2, 3, 1)
    assert torch.equal(gelu_pool(x, (2, 3)), want)
    with pytest.raises(ValueError, match='16 channels or more'):
        gelu_pool(x, (2, 3), 'cpu')
