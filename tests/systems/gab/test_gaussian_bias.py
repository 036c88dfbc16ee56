"""Gaussian attention bias against the paper's sliced table, and the attention of ViTs with it."""

import pytest
import torch
from torch import Tensor

from bioattn_mm.checkpoints import check_fit
from bioattn_mm.systems.gab import GaussianBias, GaussianRelPosAttention
from tests.systems.layers import check_formula

GRIDS = [(1, 1), (1, 5), (4, 4), (3, 7), (6, 2)]


def sliced_table(amplitude: Tensor, sigma: Tensor, grid: tuple[int, int]) -> Tensor:
    """Eq. 3 of the paper: each query slices the bias of its keys from a table of all offsets."""
    height, width = grid
    dy = torch.arange(1 - height, height, dtype=sigma.dtype)[:, None]
    dx = torch.arange(1 - width, width, dtype=sigma.dtype)
    table = amplitude**2 * torch.exp(-(dx**2 + dy**2) / (2 * sigma**2))
    queries = [
        table[height - 1 - row : 2 * height - 1 - row, width - 1 - column : 2 * width - 1 - column].flatten()
        for row in range(height)
        for column in range(width)
    ]
    return torch.stack(queries)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_equals_equation_3_in_values_and_gradients(grid: tuple[int, int]) -> None:
    layer = GaussianBias(2.3, -1.4).double()
    layer.sigma.data.neg_()  # training may give it any sign
    parameters = list(layer.parameters())
    tolerances = dict(values=dict(rtol=0, atol=1e-13), gradients=dict(rtol=0, atol=1e-12))
    check_formula(layer(grid), sliced_table(*parameters, grid), parameters, **tolerances)


def test_a_gaussian_of_each_head() -> None:
    """`num_heads` Gaussians are those of as many layers, in the bias and in a ViT's attention."""
    layer = GaussianBias(2.0, num_heads=2)
    layer.sigma.data[1], layer.amplitude.data[1] = 0.7, 1.5
    wanted = torch.stack([GaussianBias(2.0, 1.0)((3, 4)), GaussianBias(0.7, 1.5)((3, 4))])
    torch.testing.assert_close(layer((3, 4)), wanted)
    assert layer.head_parameters()['gaussian_sigma'] == pytest.approx([2.0, 0.7])
    layer.load_state_dict(layer.state_dict())

    attention = GaussianRelPosAttention(8, 2, sigma=2.0, gaussian_per_head=True).eval()
    shared = GaussianRelPosAttention(8, 2, sigma=2.0).eval()
    gaussian = shared.rel_pos.gaussian
    shared.load_state_dict({**attention.state_dict(), **gaussian.state_dict(prefix='rel_pos.gaussian.')})
    x, queries = torch.randn(1, 3, 4, 8), torch.tensor([5, 0])
    torch.testing.assert_close(attention(x), shared(x))
    for module, heads in ((attention, 2), (shared, 1)):
        weights = module.attention_maps(x, queries)['Gaussian'].weights.flatten(3)
        wanted = sliced_table(gaussian.amplitude, gaussian.sigma, (3, 4))[queries].softmax(-1)
        torch.testing.assert_close(weights, wanted.expand(1, heads, 2, 12))


def test_half_precision_on_a_long_axis() -> None:
    """Squares of offsets overflow in float16: the Gaussian has to be computed in float32."""
    bias = GaussianBias(200.0).half().table((1, 400))
    torch.testing.assert_close(bias, GaussianBias(200.0).table((1, 400)))


def test_scalars_of_older_checkpoints_are_loaded() -> None:
    layer = GaussianBias(2.0)
    weights = dict(amplitude=torch.tensor(1.5), sigma=torch.tensor(3.0))
    check_fit('old.pth', weights, layer.state_dict())
    layer.load_state_dict(weights)
    assert (layer.amplitude.tolist(), layer.sigma.tolist()) == ([1.5], [3])
