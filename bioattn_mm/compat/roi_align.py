"""RoIAlign (Mask R-CNN) with the average over the samples of a bin, forward and backward."""

import torch
import torchvision  # noqa: F401  (registers torch.ops.torchvision)
from torch import Tensor

from .missing import refuse
from .precision import upcast_half

# Values of `pool_mode`.
MAXIMUM, AVERAGE = range(2)


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average of the values at a regular grid of bilinear samples in each bin.

    Samples more than one pixel outside the image are zero, and so is a bin without samples (in a region without area,
    with sampling_ratio 0).

    Args:
        input: (B, C, H, W).
        rois: (K, 5), as (index of the image, x1, y1, x2, y2).
        output: Written in place, (K, C, aligned_height, aligned_width).
        argmax_y: Of the maximum; not used.
        argmax_x: Of the maximum; not used.
        aligned_height: Rows of bins.
        aligned_width: Columns of bins.
        spatial_scale: Factor from coordinates of the regions to those of `input`.
        sampling_ratio: Samples per bin in each direction; 0 for the height or width of the bin in pixels, rounded up.
        pool_mode: 1, the average.
        aligned: Whether pixel centres are at their index plus 0.5. Otherwise they are at their index, and regions
            have at least the size of one pixel.

    Raises:
        NotImplementedError: If `pool_mode` is 0, the maximum.
    """
    if pool_mode == MAXIMUM:
        refuse("roi_align with pool_mode='max'")
    features = upcast_half(input)
    regions = rois.to(features.dtype)
    output.copy_(
        torch.ops.torchvision.roi_align(
            features, regions, spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
        )
    )


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of each bin to the pixels around its samples.

    Args:
        grad_output: (K, C, aligned_height, aligned_width).
        rois: As in the forward, (K, 5).
        grad_input: (B, C, H, W); added to.
        argmax_y, argmax_x: Of the maximum; not used.
        aligned_height, aligned_width, spatial_scale, sampling_ratio, pool_mode, aligned: As in the forward.
    """
    grad = upcast_half(grad_output)
    grad_input += torch.ops.torchvision._roi_align_backward(
        grad,
        rois.to(grad.dtype),
        spatial_scale,
        aligned_height,
        aligned_width,
        *grad_input.shape,
        sampling_ratio,
        aligned,
    )
