"""Features of regions of an image: RoIAlign (Mask R-CNN), RoIPool (Fast R-CNN), deformable RoIPool (DCN v1).

The functions have mmcv's arguments: `rois` are (R, 5), the index of an image and a box (x1, y1, x2, y2) in pixels,
`spatial_scale` is the size of the feature map over that of the image, and `output` is (R, C, height, width) of bins.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import upcast_half

MAXIMUM = 0  # the `pool_mode` of RoIAlign that takes a maximum; 1 takes the average
CHUNK = 2**24  # elements of the largest tensor, which limit how many regions are computed at a time


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
    """Average or maximum of a regular grid of bilinear samples in each bin, written to `output`.

    Samples more than one pixel outside the image are zero, and so is an average without samples (of a region without
    area, with sampling_ratio 0). A region may end before it begins, as some of Sparse R-CNN's do; mmcv's kernel for
    CPUs refuses it, that for GPUs does not. A maximum writes the place of its sample to `argmax_y` and `argmax_x`.
    """
    features, regions = upcast_half(input), upcast_half(rois)
    bins = (aligned_height, aligned_width)
    if pool_mode != MAXIMUM:
        output.copy_(
            torch.ops.torchvision.roi_align(features, regions, spatial_scale, *bins, sampling_ratio, aligned)
        )
        return
    shift = 0.5 if aligned else 0.0
    for part, (y, x, is_sample) in _sample_places(regions, bins, spatial_scale, sampling_ratio, shift, input.size(1)):
        values = _bilinear(features, regions[part, 0], y, x).masked_fill(~is_sample[:, None], float('-inf'))
        best, index = values.max(dim=-1)
        output[part] = best.to(output.dtype)
        for places, argmax in ((y, argmax_y), (x, argmax_x)):
            argmax[part] = places[:, None].expand_as(values).gather(-1, index[..., None])[..., 0].to(argmax.dtype)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    pool_mode: int,
    **geometry: float,
) -> None:
    """Add the gradient of each bin to the pixels around its samples, in `grad_input`."""
    grad = upcast_half(grad_output)
    regions = rois.to(grad.dtype)
    if pool_mode == MAXIMUM:
        # The maximum of a bin is, in each channel, a sample at one place.
        features = grad.new_zeros(grad_input.shape).flatten(0, 1)[:, None].requires_grad_()
        channels = torch.arange(grad_input.size(1), device=grad.device)
        maps = (regions[:, :1].long() * grad_input.size(1) + channels).flatten()
        y, x = (argmax.to(grad.dtype).flatten(0, 1)[..., None] for argmax in (argmax_y, argmax_x))
        with torch.enable_grad():
            values = _bilinear(features, maps, y, x)[:, 0, ..., 0]
        (of_features,) = torch.autograd.grad(values, features, grad.flatten(0, 1))
        grad_input += of_features.view_as(grad_input)
        return
    scale, ratio, bins = geometry['spatial_scale'], geometry['sampling_ratio'], ('aligned_height', 'aligned_width')
    sizes = (*(geometry[name] for name in bins), *grad_input.shape, ratio, geometry['aligned'])
    grad_input += torch.ops.torchvision._roi_align_backward(grad, regions, scale, *sizes)


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Maximum of the pixels that each bin touches, written to `output`, and its index in the map to `argmax`.

    A bin outside the image is 0, and its index -1. mmcv does not round the borders of regions as torchvision does.
    """
    height, width = input.shape[2:]
    maps = input.flatten(2)
    regions = upcast_half(rois)
    start, end = regions[:, [2, 1]] * spatial_scale, (regions[:, [4, 3]] + 1) * spatial_scale  # y, x
    (top, bottom), (left, right) = (
        _touched(start[:, axis], (end - start)[:, axis], bins, side)
        for axis, (bins, side) in enumerate(((pooled_height, height), (pooled_width, width)))
    )
    rows, columns = (int((last - first).max()) if len(rois) else 0 for first, last in ((top, bottom), (left, right)))
    for part in _parts(len(rois), input.size(1) * pooled_height * pooled_width * rows * columns):
        y = top[part, :, None] + torch.arange(rows, device=rois.device)  # (r, bins, rows)
        x = left[part, :, None] + torch.arange(columns, device=rois.device)
        is_in = (y < bottom[part, :, None])[:, :, None, :, None] & (x < right[part, :, None])[:, None, :, None, :]
        index = (y.clamp(max=height - 1) * width)[:, :, None, :, None] + x.clamp(max=width - 1)[:, None, :, None, :]
        index, is_in = index.flatten(3), is_in.flatten(3)
        values = maps[regions[part, 0].long()[:, None, None, None, None], _channels(maps), index[:, None]]
        best, which = values.masked_fill(~is_in[:, None], float('-inf')).max(dim=-1)
        is_empty = ~is_in.any(-1)[:, None].expand_as(best)
        output[part] = best.masked_fill(is_empty, 0)
        index = index[:, None].expand_as(values).gather(-1, which[..., None])[..., 0]
        argmax[part] = index.masked_fill(is_empty, -1).to(argmax.dtype)


def roi_pool_backward(
    grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, **geometry: float
) -> None:
    """Add the gradient of each bin to the pixel that was its maximum, in `grad_input`."""
    grad = upcast_half(grad_output).masked_fill(argmax < 0, 0).flatten(2)
    pixels = argmax.clamp(min=0).long().flatten(2)
    sums = grad.new_zeros(grad_input.shape).flatten(2)
    index = (rois[:, 0].long()[:, None, None].expand_as(pixels), _channels(sums)[..., 0, 0].expand_as(pixels), pixels)
    grad_input += sums.index_put_(index, grad, accumulate=True).view_as(grad_input)


def deform_roi_pool_forward(input: Tensor, rois: Tensor, offset: Tensor, output: Tensor, **geometry: float) -> None:
    """RoIAlign whose bins are moved by `offset`, written to `output`.

    `offset` is (R, 2, height, width) as (x, y), in sizes of the region times `gamma`, or empty for none.
    """
    output.copy_(_deform_roi_pool(*map(upcast_half, (input, rois, offset)), **geometry))


def deform_roi_pool_backward(
    grad_output: Tensor,
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    **geometry: float,
) -> None:
    """Gradients of `deform_roi_pool_forward`, which is computed again, added to `grad_input` and `grad_offset`."""
    inputs = [upcast_half(tensor).detach().requires_grad_() for tensor in (input, offset)[: 1 + bool(offset.numel())]]
    moved = inputs[1] if offset.numel() else offset
    with torch.enable_grad():
        output = _deform_roi_pool(inputs[0], upcast_half(rois), moved, **geometry)
    grads = torch.autograd.grad(output, inputs, upcast_half(grad_output))
    for sums, grad in zip((grad_input, grad_offset), grads):
        sums += grad


def _deform_roi_pool(
    features: Tensor,
    rois: Tensor,
    offset: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> Tensor:
    bins = (pooled_height, pooled_width)
    parts = [features.new_zeros(0, features.size(1), *bins)]
    for part, (y, x, is_sample) in _sample_places(rois, bins, spatial_scale, sampling_ratio, 0.5, features.size(1)):
        if offset.numel():
            width, height = ((rois[part, 3:] - rois[part, 1:3]) * spatial_scale * gamma)[..., None, None].unbind(1)
            x = x + (width * offset[part, 0])[..., None]
            y = y + (height * offset[part, 1])[..., None]
        values = _bilinear(features, rois[part, 0], y, x) * is_sample[:, None]
        parts.append(values.sum(-1) / is_sample.sum(-1).clamp(min=1)[:, None])
    return torch.cat(parts)


def _sample_places(
    rois: Tensor, bins: tuple[int, int], spatial_scale: float, sampling_ratio: int, shift: float, channels: int
) -> Iterator[tuple[slice, tuple[Tensor, Tensor, Tensor]]]:
    """The samples of some regions at a time: y, x, and whether there is one, (r, bin rows, bin columns, S) each.

    A bin has `sampling_ratio` x `sampling_ratio` samples, or, where that is 0, as many as it has pixels, rounded up.
    """
    start, end = rois[:, [2, 1]] * spatial_scale - shift, rois[:, [4, 3]] * spatial_scale - shift  # y, x
    size = end - start if shift else (end - start).clamp(min=1)
    size = size / size.new_tensor(bins)  # of a bin
    counts = torch.full_like(size, sampling_ratio) if sampling_ratio > 0 else size.ceil()
    most = [int(count) for count in counts.amax(dim=0).clamp(min=1)] if len(rois) else (1, 1)
    for part in _parts(len(rois), channels * bins[0] * bins[1] * most[0] * most[1]):
        places, are_samples = [], []
        for axis in range(2):
            bin_ = torch.arange(bins[axis], device=rois.device)[:, None]
            sample = torch.arange(most[axis], device=rois.device)
            count = counts[part, axis, None, None]
            inside = (sample + 0.5) / count.clamp(min=1)
            places.append(start[part, axis, None, None] + (bin_ + inside) * size[part, axis, None, None])
            are_samples.append((sample < count).expand_as(places[-1]))
        shape = (part.stop - part.start, *bins, *most)
        y, is_y = (each[:, :, None, :, None].expand(shape).flatten(3) for each in (places[0], are_samples[0]))
        x, is_x = (each[:, None, :, None, :].expand(shape).flatten(3) for each in (places[1], are_samples[1]))
        yield part, (y, x, is_y & is_x)


def _bilinear(features: Tensor, images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Values (r, C, ...) at places (r, ...) of the maps (B, C, H, W) that `images` (r,) names.

    More than a pixel outside of the map they are zero.
    """
    height, width = features.size(2), features.size(3)
    is_inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    grid = torch.stack([2 * x / max(width - 1, 1) - 1, 2 * y / max(height - 1, 1) - 1], dim=-1).flatten(1, -2)
    values = features.new_zeros(len(y), features.size(1), grid.size(1))
    for image in images.unique().long().tolist():
        here = (images == image).nonzero()[:, 0]
        # grid_sample takes one map with all of its places: a row for each region.
        sampled = F.grid_sample(
            features[image][None], grid[here][None], mode='bilinear', padding_mode='border', align_corners=True
        )
        values = values.index_put((here,), sampled[0].transpose(0, 1))
    return values.unflatten(2, y.shape[1:]) * is_inside[:, None]


def _touched(start: Tensor, size: Tensor, bins: int, side: int) -> tuple[Tensor, Tensor]:
    """First pixel of each bin and the one behind its last, (R, bins); none of regions without a size."""
    steps = torch.arange(bins + 1, device=start.device) * (size[:, None] / bins) + start[:, None]
    first, end = steps[:, :-1].floor().clamp(0, side), steps[:, 1:].ceil().clamp(0, side)
    return first.long(), torch.where(size[:, None] > 0, end, first).long()


def _channels(maps: Tensor) -> Tensor:
    """Indices of the channels, (1, C, 1, 1, 1)."""
    return torch.arange(maps.size(1), device=maps.device)[None, :, None, None, None]


def _parts(number: int, elements: int) -> Iterator[slice]:
    """Parts of `number` regions, each of which needs a tensor of so many elements."""
    size = max(CHUNK // max(elements, 1), 1)
    for first in range(0, number, size):
        yield slice(first, min(first + size, number))
