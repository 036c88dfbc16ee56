"""Bicubic resizing against PyTorch's function."""

import pytest
import torch
import torch.nn.functional as F

from bioattn_mm.systems.common.resizing import resize_bicubic


@pytest.mark.parametrize('grid', [(14, 10), (20, 30), (5, 4), (7, 23), (13, 11), (1, 1)])
def test_equals_interpolate(grid: tuple[int, int]) -> None:
    x = torch.randn(14, 10, 3, dtype=torch.double, requires_grad=True)
    expected = F.interpolate(x.permute(2, 0, 1)[None], grid, mode='bicubic', antialias=True)[0].permute(1, 2, 0)
    output = resize_bicubic(x, grid)
    torch.testing.assert_close(output, expected)
    weights = torch.randn_like(output)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (output, expected)]
    torch.testing.assert_close(*gradients)


def test_half_precision_is_that_of_the_result_alone() -> None:
    x = torch.randn(14, 10, 3).bfloat16()
    torch.testing.assert_close(resize_bicubic(x, (200, 300)), resize_bicubic(x.float(), (200, 300)).bfloat16())
