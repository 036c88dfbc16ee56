"""Functions for the maximum over bins, for RoIAlign and RoIPool."""

from collections.abc import Iterator

import torch
from torch import Tensor

# Bins are pooled in chunks with at most this many samples over all channels (16 MB in float32).
MAX_SAMPLES_PER_CHUNK = 2**22


def bin_positions(pooled_size: tuple[int, int], device: torch.device) -> Tensor:
    """Row and column of each bin of a region, row-major, int64 (bins, 2)."""
    return torch.cartesian_prod(*(torch.arange(length, device=device) for length in pooled_size))


def to_maps(values: Tensor, pooled_size: tuple[int, int]) -> Tensor:
    """Values of all bins of all regions, (K * bins, C), as maps (K, C, *pooled_size)."""
    num_bins = pooled_size[0] * pooled_size[1]
    return values.unflatten(0, (-1, num_bins)).transpose(1, 2).unflatten(2, pooled_size)


def chunks_of_equal_grids(grid_sizes: Tensor, channels: int) -> Iterator[tuple[int, int, Tensor]]:
    """Split bins into chunks with the same grid of samples, so that the samples of a chunk are one dense tensor.

    Args:
        grid_sizes: Rows and columns of samples in each bin, int64 (bins, 2).
        channels: Number of channels, which limits the bins of a chunk.

    Yields:
        Rows, columns, and the indices of the bins with that grid, int64; bins without samples are left out.
    """
    sizes, group = grid_sizes.unique(dim=0, return_inverse=True)
    bins_by_group = group.argsort().split(group.bincount(minlength=len(sizes)).tolist())
    for (rows, columns), bins in zip(sizes.tolist(), bins_by_group):
        samples_per_bin = rows * columns * channels
        if samples_per_bin:
            for chunk in bins.split(max(1, MAX_SAMPLES_PER_CHUNK // samples_per_bin)):
                yield rows, columns, chunk


def first_maximum(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum over the samples of each bin, and the first sample with that value.

    Args:
        samples: (bins, samples, C).

    Returns:
        Maxima (bins, C) and indices of samples, int64 (bins, C).
    """
    index = samples.argmax(dim=1)
    return samples.gather(1, index[:, None]).squeeze(1), index


def add_to_images(grad_input: Tensor, image: Tensor, pixel: Tensor, grad: Tensor) -> None:
    """Add gradients of pooled values to the pixels that the values came from.

    Args:
        grad_input: (B, C, H, W), contiguous; added to.
        image: Image of each region, int64 (K,).
        pixel: Row-major index of the pixel, int64 (K, C, bins).
        grad: (K, C, bins) in the dtype of `grad_input`.
    """
    channels, height, width = grad_input.shape[1:]
    channel = torch.arange(channels, device=image.device)
    plane = image[:, None] * channels + channel
    index = plane[:, :, None] * (height * width) + pixel
    grad_input.view(-1).index_add_(0, index.flatten(), grad.flatten())
