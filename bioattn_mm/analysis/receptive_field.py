"""Effective receptive field: how much each pixel of an image contributes to the centre of a model's features."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from .gaussian_fit import fit_gaussian

# Shares of the whole contribution whose area is measured.
SHARES = (0.2, 0.5, 0.8, 0.99)
# Below this part of the gradient of another combination of the channels, that of their mean is rounding.
ROUNDING = 1e-4
# A Gaussian is fitted to means over blocks of pixels, at most this many along each axis.
FIT_LENGTH = 128


def center_gradients(model: nn.Module, x: Tensor, alternate: bool = False) -> list[Tensor]:
    """Gradient of the centre of each output by the image.

    Kim et al., BMVC 2023, section 2: the gradient of the central feature, averaged over its channels, with respect to
    the image, averaged over the colours. In a grid of even length the central feature is the one after the middle.

    Args:
        model: Maps (B, 3, H, W) to a sequence of outputs (B, C_i, H_i, W_i); in eval mode, so that no image has a
            part in another's.
        x: Images, (B, 3, H, W).
        alternate: Every second channel counts with the opposite sign.

    Returns:
        (B, H, W) for each output.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        outputs = model(x)
        centers = [output[:, :, output.shape[2] // 2, output.shape[3] // 2] for output in outputs]
        if alternate:
            centers = [center * (-1) ** torch.arange(center.shape[1], device=x.device) for center in centers]
        sums = [center.mean(1).sum() for center in centers]
    return [torch.autograd.grad(total, x, retain_graph=True)[0].mean(1) for total in sums]


def receptive_fields(model: nn.Module, images: Iterable[Tensor]) -> list[np.ndarray]:
    """Contribution of each pixel to the centre of each output: ReLU of `center_gradients`, averaged over images.

    ReLU leaves the pixels that raise the central feature.

    After a LayerNorm whose weights are all equal, that of an untrained model, the mean over the channels is a
    constant, and what float32 leaves of its gradient would look like a field: it counts as 0.

    Args:
        model: As there.
        images: (1, 3, H, W) each, at least one, all of one size.

    Returns:
        float64 (H, W) for each output.
    """
    sums, number, is_constant = 0, 0, []
    for image in images:
        gradients = center_gradients(model, image)
        if not is_constant:
            others = center_gradients(model, image, alternate=True)
            is_constant = [bool(g.abs().max() <= ROUNDING * o.abs().max()) for g, o in zip(gradients, others)]
        sums = sums + torch.stack(gradients).relu().sum(1).double()
        number += len(image)
    fields = (sums / number).cpu().numpy()
    return [field * (not constant) for field, constant in zip(fields, is_constant)]


def area_fractions(contributions: np.ndarray, shares: tuple[float, ...] = SHARES) -> list[float]:
    """Fraction of the area that holds a share of the whole contribution: that of the fewest pixels that do.

    Args:
        contributions: (H, W), none negative; all zero gives NaN.
        shares: Between 0 and 1.
    """
    ordered = np.sort(contributions, axis=None)[::-1].cumsum()
    if ordered[-1] == 0:
        return [float('nan')] * len(shares)
    # The last pixel counts for as much of it as is needed.
    number = np.interp(np.array(shares) * ordered[-1], np.append(0, ordered), np.arange(ordered.size + 1))
    return (number / contributions.size).tolist()


def fit_field(contributions: np.ndarray) -> dict[str, float]:
    """Gaussian fit to a receptive field whose largest contribution counts as 1.

    Args:
        contributions: (H, W).

    Returns:
        What `fit_gaussian` does, with lengths in pixels and the centre relative to the image's.
    """
    block = [-(-length // FIT_LENGTH) for length in contributions.shape]
    rows, columns = (length // size for length, size in zip(contributions.shape, block))
    # Of pixels that make no whole block, as many are left out at one end as at the other.
    top, left = ((length % size) // 2 for length, size in zip(contributions.shape, block))
    blocks = contributions[top : top + rows * block[0], left : left + columns * block[1]]
    blocks = blocks.reshape(rows, block[0], columns, block[1]).mean((1, 3))
    peak = blocks.max()
    values, _ = fit_gaussian(blocks / peak if peak > 0 else blocks)
    for key, size in zip(('sigma_y', 'center_y', 'sigma_x', 'center_x'), np.repeat(block, 2)):
        values[key] *= float(size)
    return values
