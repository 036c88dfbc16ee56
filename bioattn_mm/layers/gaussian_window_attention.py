"""Swin's window attention with the Gaussian attention bias. Importing it imports mmpretrain: some seconds."""

from mmpretrain.models.utils import WindowMSA
from torch import Tensor

from .gaussian_bias import GaussianBias


class GaussianWindowMSA(WindowMSA):
    """mmpretrain's window attention with `GaussianBias` beside the table of relative positions.

    Args:
        sigma: Initial value of the Gaussian, in tokens.
        amplitude: The same.
        **kwargs: mmpretrain's.
    """

    def __init__(self, *, sigma: float, amplitude: float = 1.0, **kwargs) -> None:
        super().__init__(**kwargs)
        self.gaussian = GaussianBias(sigma, amplitude)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B * windows, N, C) to the same; `mask`, (windows, N, N), is that of the shifted windows."""
        # All heads have the same Gaussian, so it can go where the mask goes.
        bias = self.gaussian(self.window_size).to(x.dtype)[None]
        return super().forward(x, bias if mask is None else mask.to(x.dtype) + bias)

    def table(self) -> Tensor:
        """The whole bias of each offset in the window: (heads, 2 H - 1, 2 W - 1)."""
        height, width = self.window_size
        learned = self.relative_position_bias_table.T.unflatten(1, (2 * height - 1, 2 * width - 1))
        return learned + self.gaussian.table(self.window_size)
