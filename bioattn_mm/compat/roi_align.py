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
    """Average of the values at a regular grid of bilinear samples in each bin, written to `output`.

    Samples more than one pixel outside the image are zero, and so is a bin without samples (in a region without area,
    with sampling_ratio 0). The arguments are those of mmcv's op; `argmax_y` and `argmax_x`, of the maximum, are left
    alone.

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
    """Add the gradient of each bin to the pixels around its samples, in `grad_input`; arguments as in the forward."""
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
