"""Multi-scale deformable attention (Deformable DETR, eq. 3), forward and backward."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import upcast_half


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int,
) -> Tensor:
    """Weighted sum of values sampled bilinearly from each level; values outside a level are zero.

    Args:
        value: Values of all levels, concatenated, each row-major, (B, sum of H * W, heads, d).
        spatial_shapes: Height and width of each level, int64 (levels, 2).
        level_start_index: Not used, it follows from the shapes.
        sampling_loc: Sampling points as (x, y), where 0 and 1 are the outer edges of the level,
            (B, queries, heads, levels, points, 2).
        attn_weight: (B, queries, heads, levels, points).
        im2col_step: Not used, it is of the compiled kernel.

    Returns:
        (B, queries, heads * d) in the dtype of `value`.
    """
    locations, weights = upcast_half(sampling_loc), upcast_half(attn_weight)
    output = sum(
        _sample_level(level_value, shape, locations[:, :, :, i], weights[:, :, :, i])
        for i, (level_value, shape) in enumerate(_levels(value, spatial_shapes))
    )
    return output.to(value.dtype).contiguous()


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Gradients of `ms_deform_attn_forward`, which is recomputed one level at a time to save memory.

    `grad_value`, `grad_sampling_loc` and `grad_attn_weight` are written in place, with the shapes of their inputs.
    """
    locations, weights = upcast_half(sampling_loc), upcast_half(attn_weight)
    grad_output = upcast_half(grad_output)
    first = 0
    for i, (level_value, shape) in enumerate(_levels(value, spatial_shapes)):
        inputs = (level_value, locations[:, :, :, i], weights[:, :, :, i])
        level_value, *points = inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            output = _sample_level(level_value, shape, *points)
        grads = torch.autograd.grad(output, inputs, grad_output)
        grad_value[:, first : first + level_value.size(1)] = grads[0]
        grad_sampling_loc[:, :, :, i] = grads[1]
        grad_attn_weight[:, :, :, i] = grads[2]
        first += level_value.size(1)


def _levels(value: Tensor, spatial_shapes: Tensor) -> list[tuple[Tensor, tuple[int, int]]]:
    """Value (B, H * W, heads, d) and shape (H, W) of each level."""
    # `split` needs the sizes on the host: one copy for all levels.
    shapes = [tuple(shape) for shape in spatial_shapes.tolist()]
    return list(zip(upcast_half(value).split([height * width for height, width in shapes], dim=1), shapes))


def _sample_level(value: Tensor, shape: tuple[int, int], locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of the samples of one level, (B, queries, heads * d), of values (B, H * W, heads, d).

    Locations are (B, queries, heads, points, 2), weights as many without the last axis.
    """
    maps = value.permute(0, 2, 3, 1).flatten(0, 1).unflatten(2, shape)
    # grid_sample has the outer edges at -1 and 1.
    grid = (2 * locations - 1).transpose(1, 2).flatten(0, 1)
    samples = F.grid_sample(maps, grid, mode='bilinear', padding_mode='zeros', align_corners=False)
    weights = weights.transpose(1, 2).flatten(0, 1).unsqueeze(1)
    output = (samples * weights).sum(-1)
    return output.unflatten(0, (value.size(0), -1)).flatten(1, 2).transpose(1, 2)
