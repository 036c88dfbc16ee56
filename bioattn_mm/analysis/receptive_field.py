"""Effective receptive field: how much each pixel of an image contributes to the central feature of an output."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from .images import stride_of
from .maps import fit_gaussian

# The areas that hold these shares of the whole contribution are measured.
SHARES = (0.2, 0.5, 0.8, 0.99)
# If the gradient of the channel mean is below this fraction of that of another combination of the channels, it is
# rounding noise.
ROUNDING = 1e-4
# A Gaussian is fitted to means over blocks of pixels; maximum number of blocks along each axis.
FIT_LENGTH = 128


def feature_gradients(
    model: nn.Module, x: Tensor, alternate: bool = False, pixel: tuple[int, int] | None = None
) -> list[Tensor]:
    """Gradient of one feature of each output with respect to the image.

    Kim et al., BMVC 2023, section 2: the feature is averaged over its channels, the gradient over the colours of the
    image. There it is the central feature; if a feature map has an even length, the one after the middle.

    Args:
        model: Maps (B, 3, H, W) to a sequence of outputs (B, C_i, H_i, W_i). It must be in eval mode, in which the
            images of a batch do not influence each other.
        x: Images, (B, 3, H, W).
        alternate: Negate every second channel before averaging.
        pixel: Row and column in the image; of each output, whose stride must be a power of two, the feature that
            covers this pixel is taken. None for the centre.

    Returns:
        The gradient, (B, H, W), for each output.
    """
    x = x.detach().requires_grad_()
    sums = []
    with torch.enable_grad():
        for output in model(x):
            height, width = output.shape[2:]
            row, column = height // 2, width // 2
            if pixel is not None:
                stride = stride_of((height, width), tuple(x.shape[2:]))
                row, column = (place // stride for place in pixel)
            feature = output[:, :, row, column]
            if alternate:
                feature = feature * (-1) ** torch.arange(feature.shape[1], device=x.device)
            sums.append(feature.mean(1).sum())
    return [torch.autograd.grad(total, x, retain_graph=True)[0].mean(1) for total in sums]


def receptive_fields(
    model: nn.Module, images: Iterable[Tensor], pixel: tuple[int, int] | None = None
) -> list[np.ndarray]:
    """Contribution of each pixel to one feature: ReLU of `feature_gradients`, averaged over images.

    ReLU keeps the pixels that raise the feature. The field is 0 if the mean over the channels is constant, as
    after the LayerNorm of an untrained model, whose weights are all equal: the gradient is then rounding noise.
    There must be an image, and all must be (1, 3, H, W) of one size.

    Returns:
        The contributions, float64 (H, W), for each output.
    """
    sums, number, is_constant = 0, 0, []
    for image in images:
        gradients = feature_gradients(model, image, pixel=pixel)
        if not is_constant:
            others = feature_gradients(model, image, alternate=True, pixel=pixel)
            is_constant = [bool(g.abs().max() <= ROUNDING * o.abs().max()) for g, o in zip(gradients, others)]
        sums = sums + torch.stack(gradients).relu().sum(1).double()
        number += len(image)
    fields = (sums / number).cpu().numpy()
    return [field * (not constant) for field, constant in zip(fields, is_constant)]


def area_fractions(contributions: np.ndarray, shares: tuple[float, ...] = SHARES) -> list[float]:
    """Fractions of the image's area that hold shares of the whole contribution, in as few pixels as possible.

    `contributions` (H, W) are not negative; all zero gives NaN.
    """
    ordered = np.sort(contributions, axis=None)[::-1].cumsum()
    if ordered[-1] == 0:
        return [float('nan')] * len(shares)
    # Interpolated: only the needed part of the last pixel counts.
    number = np.interp(np.array(shares) * ordered[-1], np.append(0, ordered), np.arange(ordered.size + 1))
    return (number / contributions.size).tolist()


def fit_field(contributions: np.ndarray) -> dict[str, float]:
    """`fit_gaussian` of a receptive field (H, W), scaled so that its largest contribution is 1; lengths in pixels."""
    block = [-(-length // FIT_LENGTH) for length in contributions.shape]
    rows, columns = (length // size for length, size in zip(contributions.shape, block))
    # Pixels beyond whole blocks are cropped equally at both ends.
    top, left = ((length % size) // 2 for length, size in zip(contributions.shape, block))
    blocks = contributions[top : top + rows * block[0], left : left + columns * block[1]]
    blocks = blocks.reshape(rows, block[0], columns, block[1]).mean((1, 3))
    peak = blocks.max()
    values = fit_gaussian(blocks / peak if peak > 0 else blocks)
    for key, size in zip(('sigma_y', 'center_y', 'sigma_x', 'center_x'), np.repeat(block, 2)):
        values[key] *= float(size)
    return values
