"""Effective receptive fields with a known answer: a convolution, a square, Gaussians, an untrained LayerNorm."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from bioattn_mm.analysis.receptive_field import SHARES, area_fractions, feature_gradients, fit_field, receptive_fields


class Outputs(nn.Module):
    """A model of several outputs."""

    def __init__(self, *functions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(x) for function in self.functions)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def gaussian(shape: tuple[int, int], sigma: tuple[float, float], center: tuple[float, float] = (0, 0)) -> np.ndarray:
    """With sigma and centre as (y, x), from the middle."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    y, x = y - (shape[0] - 1) / 2 - center[0], x - (shape[1] - 1) / 2 - center[1]
    return np.exp(-(y**2) / (2 * sigma[0] ** 2) - x**2 / (2 * sigma[1] ** 2))


@pytest.mark.parametrize(
    ('size', 'strided', 'pixel', 'corners'),
    [
        # The centre (4, 7); of 2 x 3 features of stride 4 the one of row 1 and column 1.
        ((9, 14), dict(kernel_size=5), None, ((3, 6), (4, 4))),
        # The features that cover a pixel, also where the last column of them is half outside.
        ((8, 14), dict(kernel_size=4, padding=(0, 2)), (5, 13), ((4, 12), (4, 10))),
    ],
    ids=['centre', 'pixel'],
)
def test_field_of_convolutions(size: tuple, strided: dict, pixel: tuple | None, corners: tuple) -> None:
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 2, stride=4, **strided)
    fields = receptive_fields(Outputs(*layers), [torch.randn(1, 3, *size) for _ in range(3)], pixel)
    for field, layer, (top, left) in zip(fields, layers, corners):
        kernel = layer.weight.detach().double().mean((0, 1)).relu().numpy()[:, : size[1] - left]
        wanted = np.zeros(size)
        wanted[top : top + kernel.shape[0], left : left + kernel.shape[1]] = kernel
        np.testing.assert_allclose(field, wanted, atol=1e-7)


def test_mean_over_images_comes_after_relu() -> None:
    images = [torch.randn(1, 3, 5, 5) for _ in range(4)]
    (field,) = receptive_fields(Outputs(Square()), images)
    # Each of 3 channels depends on its own colour: 2 x / 3, averaged over 3 colours.
    wanted = np.mean([max(0.0, 2 * image[0, :, 2, 2].sum().item() / 9) for image in images])
    assert field[2, 2] == pytest.approx(wanted, rel=1e-6) and wanted > 0
    assert np.count_nonzero(field) == 1
    # Images of a batch keep apart.
    (together,) = feature_gradients(Outputs(Square()), torch.cat(images))
    for image, gradient in zip(images, together, strict=True):
        torch.testing.assert_close(feature_gradients(Outputs(Square()), image)[0][0], gradient)


@pytest.mark.parametrize('trained', [False, True])
def test_untrained_layer_norm_has_no_field(trained: bool) -> None:
    norm = LayerNorm2d(16)
    if trained:
        nn.init.uniform_(norm.weight, 0.9, 1.1)
    layer = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), norm)
    normalised, plain = receptive_fields(Outputs(layer, nn.Conv2d(3, 4, 3, padding=1)), [torch.randn(1, 3, 8, 8)])
    assert normalised.any() == trained and plain.any()


def test_areas_of_a_field() -> None:
    """A Gaussian, a flat one, a single pixel, and none."""
    sigma = (4, 7)
    field = gaussian((121, 151), sigma)
    # A share t lies in the ellipse where exp(-r^2 / 2) is above 1 - t.
    wanted = [2 * math.pi * sigma[0] * sigma[1] * -math.log(1 - share) / field.size for share in SHARES]
    np.testing.assert_allclose(area_fractions(field), wanted, rtol=0.01)
    np.testing.assert_allclose(area_fractions(np.full((7, 9), 2.0)), SHARES)
    single = np.zeros((5, 4))
    single[1, 2] = 3
    np.testing.assert_allclose(area_fractions(single), np.array(SHARES) / 20)
    assert np.isnan(area_fractions(np.zeros((3, 3)))).all()


@pytest.mark.parametrize('shape', [(96, 120), (257, 390)], ids=str)
def test_fit_is_in_pixels(shape: tuple[int, int]) -> None:
    fit = fit_field(1e-7 * gaussian(shape, (11, 17), (-6, 9)))
    assert fit['r_squared'] == pytest.approx(1, abs=1e-4)
    wanted = dict(sigma_y=11, sigma_x=17, center_y=-6, center_x=9, amplitude=1)
    assert {key: fit[key] for key in wanted} == pytest.approx(wanted, rel=0.02)
    assert math.isnan(fit_field(np.zeros(shape))['sigma_x'])
