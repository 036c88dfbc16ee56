"""RoIAlign (Mask R-CNN) with the average or maximum over the samples of a bin, forward and backward."""

import torch
import torchvision  # noqa: F401  (registers torch.ops.torchvision)
from torch import Tensor

from .precision import upcast_half
from .roi_bins import (
    MAX_SAMPLES_PER_CHUNK,
    add_to_images,
    bin_positions,
    chunks_of_equal_grids,
    first_maximum,
    to_maps,
)

# Values of `pool_mode`.
MAXIMUM, AVERAGE = range(2)

# Initial maximum of mmcv's CPU kernel, and so the lower bound of all maxima.
LOWEST_MAXIMUM = -10000


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
    """Average or maximum of the values at a regular grid of bilinear samples in each bin.

    Samples more than one pixel outside the image are zero. A bin without samples (in a region without area, with
    sampling_ratio 0) has the average 0 and the maximum -10000 as in mmcv's CPU kernel; mmcv's CUDA kernel gives the
    lowest float32.

    Args:
        input: (B, C, H, W).
        rois: (K, 5), as (index of the image, x1, y1, x2, y2).
        output: Written in place, (K, C, aligned_height, aligned_width).
        argmax_y: Written in place: y of the sample that is the maximum, in pixels of `input`, -1 for none. It has the
            shape of `output`, or is empty for the average.
        argmax_x: The same for x.
        aligned_height: Rows of bins.
        aligned_width: Columns of bins.
        spatial_scale: Factor from coordinates of the regions to those of `input`.
        sampling_ratio: Samples per bin in each direction; 0 for the height or width of the bin in pixels, rounded up.
        pool_mode: 0 maximum, 1 average.
        aligned: Whether pixel centres are at their index plus 0.5. Otherwise they are at their index, and regions
            have at least the size of one pixel.
    """
    features = upcast_half(input)
    regions = rois.to(features.dtype)
    if pool_mode == AVERAGE:
        output.copy_(
            torch.ops.torchvision.roi_align(
                features, regions, spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
            )
        )
    elif output.numel():
        pooled_size = (aligned_height, aligned_width)
        results = _maximum(features, regions, pooled_size, spatial_scale, sampling_ratio, aligned)
        for target, result in zip((output, argmax_y, argmax_x), results):
            target.copy_(result)


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
    """Add the gradient of each bin to the pixels around its samples, or around the sample with the maximum.

    Args:
        grad_output: (K, C, aligned_height, aligned_width).
        rois: As in the forward, (K, 5).
        argmax_y, argmax_x: From the forward.
        grad_input: (B, C, H, W); added to.
        aligned_height, aligned_width, spatial_scale, sampling_ratio, pool_mode, aligned: As in the forward.
    """
    grad = upcast_half(grad_output)
    regions = rois.to(grad.dtype)
    if pool_mode == AVERAGE:
        grad_input += torch.ops.torchvision._roi_align_backward(
            grad,
            regions,
            spatial_scale,
            aligned_height,
            aligned_width,
            *grad_input.shape,
            sampling_ratio,
            aligned,
        )
    elif grad.numel():
        _add_maximum_gradient(grad, regions[:, 0].long(), upcast_half(argmax_y), upcast_half(argmax_x), grad_input)


def _maximum(
    features: Tensor,
    regions: Tensor,
    pooled_size: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum of each bin, and y and x of the sample with the maximum, each (K, C, *pooled_size)."""
    batch_size, channels, height, width = features.shape
    # All positions from here on are (y, x).
    corners = regions[:, 1:].unflatten(1, (2, 2)).flip(2) * spatial_scale - (0.5 if aligned else 0.0)
    start, size = corners[:, 0], corners[:, 1] - corners[:, 0]
    if not aligned:
        size = size.clamp(min=1)
    bin_size = (size / torch.tensor(pooled_size, device=size.device))[:, None]
    bins = bin_positions(pooled_size, size.device)
    origin = (start[:, None] + bins * bin_size).flatten(0, 1)
    bin_size = bin_size.expand(-1, len(bins), -1).flatten(0, 1)
    if sampling_ratio > 0:
        grid_sizes = torch.full_like(origin, sampling_ratio, dtype=torch.long)
    else:
        grid_sizes = bin_size.ceil().long().clamp(min=0)

    image = regions[:, 0].long().repeat_interleave(len(bins))
    pixels = features.permute(0, 2, 3, 1).reshape(batch_size * height * width, channels)
    maxima = features.new_full((len(origin), channels), LOWEST_MAXIMUM)
    maxima_y, maxima_x = torch.full_like(maxima, -1), torch.full_like(maxima, -1)
    for num_rows, num_columns, chunk in chunks_of_equal_grids(grid_sizes, channels):
        y = _sample_positions(origin[chunk, 0], bin_size[chunk, 0], num_rows)
        x = _sample_positions(origin[chunk, 1], bin_size[chunk, 1], num_columns)
        y = y[:, :, None].expand(-1, -1, num_columns).flatten(1)
        x = x[:, None].expand(-1, num_rows, -1).flatten(1)
        first_pixel = image[chunk, None] * (height * width)
        samples = sum(
            pixels[first_pixel + pixel] * weight[:, :, None]
            for pixel, weight in _bilinear_neighbours(y, x, height, width)
        )
        maximum, index = first_maximum(samples)
        found = maximum > LOWEST_MAXIMUM
        maxima[chunk] = torch.where(found, maximum, LOWEST_MAXIMUM)
        maxima_y[chunk] = torch.where(found, y.gather(1, index), -1)
        maxima_x[chunk] = torch.where(found, x.gather(1, index), -1)
    return to_maps(maxima, pooled_size), to_maps(maxima_y, pooled_size), to_maps(maxima_x, pooled_size)


def _sample_positions(origin: Tensor, bin_size: Tensor, count: int) -> Tensor:
    """Positions of `count` samples at equal distances in each bin, (bins, count)."""
    steps = torch.arange(count, dtype=origin.dtype, device=origin.device) + 0.5
    return origin[:, None] + steps * bin_size[:, None] / count


def _bilinear_neighbours(y: Tensor, x: Tensor, height: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """Row-major index and weight of the four pixels around each position; weight 0 outside the image."""
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y0, y1, fraction_y = _linear_neighbours(y, height)
    x0, x1, fraction_x = _linear_neighbours(x, width)
    return [
        (y0 * width + x0, (1 - fraction_y) * (1 - fraction_x) * inside),
        (y0 * width + x1, (1 - fraction_y) * fraction_x * inside),
        (y1 * width + x0, fraction_y * (1 - fraction_x) * inside),
        (y1 * width + x1, fraction_y * fraction_x * inside),
    ]


def _linear_neighbours(position: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels before and after a position, and the weight of the latter; positions are clamped to the image."""
    position = position.clamp(0, length - 1)
    before = position.long()
    return before, (before + 1).clamp(max=length - 1), position - before


def _add_maximum_gradient(
    grad: Tensor, image: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor
) -> None:
    """Add the gradient of each maximum to the four pixels that its sample was interpolated from."""
    total = torch.zeros(grad_input.shape, dtype=grad.dtype, device=grad.device)
    regions_per_chunk = max(1, MAX_SAMPLES_PER_CHUNK // grad[0].numel())
    parts = (tensor.split(regions_per_chunk) for tensor in (image, grad, argmax_y, argmax_x))
    for chunk_image, *chunk in zip(*parts):
        chunk_grad, y, x = (tensor.flatten(2) for tensor in chunk)
        chunk_grad = torch.where(y == -1, 0, chunk_grad)
        for pixel, weight in _bilinear_neighbours(y, x, *grad_input.shape[2:]):
            add_to_images(total, chunk_image, pixel, chunk_grad * weight)
    grad_input += total
