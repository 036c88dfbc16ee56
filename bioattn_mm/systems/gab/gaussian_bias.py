"""Gaussian attention bias (GAB): a Gaussian of the offset between query and key, added to the attention logits."""

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...ops.constants import cached_constant
from ...ops.relative_bias_attention import bias_of_pairs
from ..common.layout import Grid


class GaussianBias(nn.Module):
    """Position bias of one attention layer, shared by its heads or one for each.

    Source: Gaussian attention bias (Kim et al., BMVC 2023), eq. 3: `A^2 exp(-(dx^2 + dy^2) / (2 sigma^2))` with the
    offsets dx and dy between query and key in tokens, and two learned scalars, A and sigma. With A = 0 the bias is
    off and stays off: its gradient, 2 A times a Gaussian, is 0 as well.

    Args:
        sigma: Initial standard deviation, in tokens.
        amplitude: Initial value of A; the logit of a token's attention to itself is raised by A^2.
        num_heads: Number of heads that have an A and a sigma each, with which the paper's appendix compares; None for
            one of each, as the paper has chosen (section 4).

    Raises:
        InputError: sigma is not positive.
    """

    def __init__(self, sigma: float, amplitude: float = 1.0, num_heads: int | None = None) -> None:
        super().__init__()
        if sigma <= 0:
            raise InputError(f'sigma must be positive, got {sigma}')
        # They have an axis because FSDP2 cannot divide scalars.
        self.amplitude = nn.Parameter(torch.full((num_heads or 1,), float(amplitude)))
        self.sigma = nn.Parameter(torch.full((num_heads or 1,), float(sigma)))
        self.per_head = num_heads is not None
        self.register_load_state_dict_pre_hook(_take_scalars)

    def head_parameters(self) -> dict[str, list[float]]:
        """A (which enters the bias squared) and sigma in tokens, one number each if all heads share them."""
        return dict(gaussian_amplitude=self.amplitude.tolist(), gaussian_sigma=self.sigma.tolist())

    def forward(self, grid: Grid) -> Tensor:
        """Bias of all pairs of tokens of a grid (height, width): float32 or float64 ([heads,] H * W, H * W)."""
        return bias_of_pairs(self.table(grid), grid)

    def table(self, grid: Grid) -> Tensor:
        """Bias of all offsets on a grid (height, width): float32 or float64 ([heads,] 2 H - 1, 2 W - 1)."""
        tables = gaussians(self.amplitude, self.sigma, grid)
        return tables if self.per_head else tables[0]


def gaussians(amplitude: Tensor, sigma: Tensor, grid: Grid) -> Tensor:
    """Gaussians, float32 or float64 (..., 2 H - 1, 2 W - 1), of amplitudes and sigmas (...)."""
    squares = squared_distances(*grid, torch.promote_types(sigma.dtype, torch.float32), sigma.device)
    amplitude, sigma = (each[..., None, None].to(squares.dtype) for each in (amplitude, sigma))
    return amplitude.square() * torch.exp(squares / (-2 * sigma.square()))


@cached_constant
def squared_distances(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`dx^2 + dy^2` of all offsets on a grid: (2 H - 1, 2 W - 1)."""
    dy, dx = (torch.arange(1 - length, length, dtype=dtype, device=device) for length in (height, width))
    return dx**2 + dy[:, None] ** 2


def _take_scalars(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Load A and sigma also from checkpoints that hold them as scalars."""
    for name in ('amplitude', 'sigma'):
        if (value := state_dict.get(prefix + name)) is not None:
            state_dict[prefix + name] = value.reshape(-1)
