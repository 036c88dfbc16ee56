"""RoIPool (Fast R-CNN) in mmcv's variant, forward and backward.

It differs from torchvision's: regions end at x2 + 1 and y2 + 1, and the edges of the bins are rounded instead of the
scaled corners of the regions.
"""

import torch
from torch import Tensor

from .precision import upcast_half
from .roi_bins import add_to_images, bin_positions, chunks_of_equal_grids, first_maximum, to_maps


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Maximum over the pixels of each bin, zero for a bin without pixels.

    Args:
        input: (B, C, H, W).
        rois: (K, 5), as (index of the image, x1, y1, x2, y2).
        output: Written in place, (K, C, pooled_height, pooled_width).
        argmax: Written in place, int32 of the shape of `output`: row-major index of the pixel in its image, or -1.
        pooled_height: Rows of bins.
        pooled_width: Columns of bins.
        spatial_scale: Factor from coordinates of the regions to those of `input`.
    """
    if output.numel() == 0:
        return
    batch_size, channels, height, width = input.shape
    # All positions from here on are (y, x).
    image_size = torch.tensor([height, width], device=rois.device)
    corners = upcast_half(rois)[:, 1:].unflatten(1, (2, 2)).flip(2)
    start, end = corners[:, 0] * spatial_scale, (corners[:, 1] + 1) * spatial_scale
    pooled_size = (pooled_height, pooled_width)
    bin_size = ((end - start) / torch.tensor(pooled_size, device=rois.device))[:, None]
    bins = bin_positions(pooled_size, rois.device)
    first = (bins * bin_size + start[:, None]).floor().long().clamp(min=0).minimum(image_size)
    last = ((bins + 1) * bin_size + start[:, None]).ceil().long().clamp(min=0).minimum(image_size)
    grid_sizes = (last - first).clamp(min=0)
    # A region that ends before it starts has no pixels.
    grid_sizes *= (end > start).all(1)[:, None, None]

    first, grid_sizes = first.flatten(0, 1), grid_sizes.flatten(0, 1)
    image = rois[:, 0].long().repeat_interleave(len(bins))
    pixels = input.permute(0, 2, 3, 1).reshape(batch_size * height * width, channels)
    maxima = pixels.new_zeros(len(first), channels)
    positions = argmax.new_full((len(first), channels), -1)
    for num_rows, num_columns, chunk in chunks_of_equal_grids(grid_sizes, channels):
        y = first[chunk, 0, None] + torch.arange(num_rows, device=rois.device)
        x = first[chunk, 1, None] + torch.arange(num_columns, device=rois.device)
        position = (y[:, :, None] * width + x[:, None]).flatten(1)
        maxima[chunk], index = first_maximum(pixels[image[chunk, None] * (height * width) + position])
        positions[chunk] = position.gather(1, index).to(positions.dtype)

    output.copy_(to_maps(maxima, pooled_size))
    argmax.copy_(to_maps(positions, pooled_size))


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add the gradient of each bin to the pixel with its maximum.

    Args:
        grad_output: (K, C, pooled_height, pooled_width).
        rois: As in the forward, (K, 5).
        argmax: From the forward.
        grad_input: (B, C, H, W); added to.
        pooled_height, pooled_width, spatial_scale: As in the forward.
    """
    grad = upcast_half(grad_output).flatten(2)
    pixel = argmax.flatten(2).long()
    total = torch.zeros(grad_input.shape, dtype=grad.dtype, device=grad.device)
    add_to_images(total, rois[:, 0].long(), pixel.clamp(min=0), torch.where(pixel >= 0, grad, 0))
    grad_input += total
