"""Convolutions with kernels as large as the token grid, learned as half-spectra: of VARS-S and of GFNet."""

import torch
from torch import Tensor, nn

from ..ops.constants import cached_constant
from ..ops.portable import is_same_grid
from .grid import Grid


class FourierKernels(nn.Module):
    """Base of layers whose kernels are half-spectra: Fourier transforms at non-negative horizontal frequencies.

    On another grid than that of the pre-training, each kernel weight keeps its offset in tokens, and the circle of
    the convolution becomes longer or shorter.

    Args:
        grid: Token grid (height, width) of the pre-training, the size of the kernels.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.half_spectrum = (grid[0], grid[1] // 2 + 1, 2)  # real and imaginary parts

    def _spectrum(self, kernel: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
        """Half-spectra of kernels on a grid: (..., h, w // 2 + 1, 2) to (..., H, W // 2 + 1), complex."""
        spectrum = torch.view_as_complex(kernel.to(dtype).contiguous())
        if is_same_grid(grid, self.grid):
            return spectrum
        kernel = torch.fft.irfft2(spectrum, s=self.grid)
        for axis, (own, length) in enumerate(zip(self.grid, grid), start=-2):
            shape = [*kernel.shape]
            shape[axis] = length
            kernel = kernel.new_zeros(shape).index_add(axis, _places(own, length, kernel.device), kernel)
        return torch.fft.rfft2(kernel)


@cached_constant
def _places(own: int, length: int, device: torch.device) -> Tensor:
    """Places of the weights of a kernel of length `own` on a circle of another length: int64 (own,).

    Their offsets, from -own / 2 to own / 2, stay the same.
    """
    offset = (torch.arange(own, device=device) + own // 2) % own - own // 2
    return offset % length


def circular_convolution(x: Tensor, spectrum: Tensor) -> Tensor:
    """Circular convolution over the last two axes, (..., H, W), with kernels given by their half-spectra."""
    return torch.fft.irfft2(torch.fft.rfft2(x) * spectrum, s=x.shape[-2:])
