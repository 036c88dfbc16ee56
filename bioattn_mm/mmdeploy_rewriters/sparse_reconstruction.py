"""VARS attention without complex numbers, which ONNX does not have.

The code of the layers is traced as it is, except that its complex tensors become `Complex`, pairs of real tensors,
and the two Fourier transforms become products with cosine and sine matrices.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from mmdeploy.core import FUNCTION_REWRITER
from torch import Tensor

from ..layers.fourier import FourierKernels
from .sizes import Grid, Length, from_sizes

RFFT2, IRFFT2 = 'torch.fft.rfft2', 'torch.fft.irfft2'
SPECTRUM = 'bioattn_mm.layers.fourier.FourierKernels._spectrum'


class Complex(NamedTuple):
    """A complex tensor as two real ones, with the operations that VARS-S and GFNet use."""

    real: Tensor
    imag: Tensor

    def __mul__(self, other: 'Complex') -> 'Complex':
        real = self.real * other.real - self.imag * other.imag
        return Complex(real, self.real * other.imag + self.imag * other.real)

    def conj(self) -> 'Complex':
        return Complex(self.real, -self.imag)

    def detach(self) -> 'Complex':
        return Complex(self.real.detach(), self.imag.detach())

    def sum(self, dim: int, keepdim: bool = False) -> 'Complex':
        return Complex(self.real.sum(dim, keepdim), self.imag.sum(dim, keepdim))


@FUNCTION_REWRITER.register_rewriter(RFFT2)
def rfft2__matrices(x: Tensor) -> Complex:
    """Half-spectrum over the last two axes: (..., H, W) to (..., H, W // 2 + 1)."""
    with from_sizes(FUNCTION_REWRITER.get_context(RFFT2).cfg):
        grid = x.shape[-2:]
        matrices = fourier_matrices([torch.arange(length) for length in grid], grid, x.dtype)
    return transform(x, matrices)


@FUNCTION_REWRITER.register_rewriter(IRFFT2)
def irfft2__matrices(spectrum: Complex, s: Grid) -> Tensor:
    """Inverse transform of a half-spectrum: (..., H, W // 2 + 1) to real (..., H, W), with s = (H, W)."""
    with from_sizes(FUNCTION_REWRITER.get_context(IRFFT2).cfg):
        height, width = s
        cos, sin, row_cos, row_sin = fourier_matrices(
            [torch.arange(height), torch.arange(width)], s, spectrum[0].dtype
        )
        # A column counts twice, for the conjugate half, except the first and, for an even width, the last.
        frequency = torch.arange(width // 2 + 1)
        count = torch.where(2 * frequency % width == 0, 1, 2).to(cos.dtype) / (height * width)
        row_cos, row_sin = count[:, None] * row_cos.T, count[:, None] * row_sin.T
    real = cos @ spectrum.real - sin @ spectrum.imag
    imag = cos @ spectrum.imag + sin @ spectrum.real
    return real @ row_cos - imag @ row_sin


def transform(x: Tensor, matrices: Sequence[Tensor]) -> Complex:
    """Sum of x exp(-i angle) over the last two axes, with the matrices of `fourier_matrices`."""
    cos, sin, row_cos, row_sin = matrices
    real, imag = x @ row_cos, -(x @ row_sin)
    return Complex(cos @ real + sin @ imag, cos @ imag - sin @ real)


def fourier_matrices(positions: Sequence[Tensor], grid: Grid, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Cosine and sine of the angles of all frequencies of a grid (H, W) at some rows and columns.

    Args:
        positions: Rows (h,) and columns (w,), int64.
        grid: (H, W).
        dtype: Of the matrices.

    Returns:
        Cosine and sine of the vertical angles, (H, h), and of the horizontal angles, (w, W // 2 + 1).
    """

    def waves(frequency: Tensor, position: Tensor, length: Length) -> tuple[Tensor, Tensor]:
        # Whole turns are removed in integers, where that is exact.
        angle = (frequency * position % length).to(dtype) * (2 * math.pi / torch.as_tensor(length, dtype=dtype))
        return angle.cos(), angle.sin()

    vertical = waves(torch.arange(grid[0])[:, None], positions[0], grid[0])
    return *vertical, *waves(torch.arange(grid[1] // 2 + 1), positions[1][:, None], grid[1])


@FUNCTION_REWRITER.register_rewriter(SPECTRUM)
def spectrum__matrices(self: FourierKernels, kernel: Tensor, grid: Grid, dtype: torch.dtype) -> Complex:
    """Half-spectrum of kernels, (..., h, w // 2 + 1, 2), on another grid: (..., H, W // 2 + 1).

    The tokens of the kernels keep their positions around the centre; the frequencies are those of the other grid.
    """
    with from_sizes(FUNCTION_REWRITER.get_context(SPECTRUM).cfg):
        own = Complex(*kernel.to(dtype).unbind(-1))
        spatial = torch.fft.irfft2(own, s=self.grid)
        positions = [(torch.arange(length) + length // 2) % length - length // 2 for length in self.grid]
        moved = transform(spatial, fourier_matrices(positions, grid, dtype))
        # On its own grid the layer uses the learned spectrum itself. Its part that belongs to no real kernel is lost
        # in `spatial`; it is added on that grid.
        lost = [before - after for before, after in zip(own, torch.fft.rfft2(spatial))]
        rows, columns = (
            (torch.arange(length)[:, None] == torch.arange(own_length)).to(dtype)
            for length, own_length in ((grid[0], self.grid[0]), (grid[1] // 2 + 1, self.grid[1] // 2 + 1))
        )
        is_own = torch.as_tensor(grid[0] == self.grid[0]) & torch.as_tensor(grid[1] == self.grid[1])
        rows = rows * is_own.to(dtype)
        return Complex(*(part + rows @ rest @ columns.T for part, rest in zip(moved, lost)))
