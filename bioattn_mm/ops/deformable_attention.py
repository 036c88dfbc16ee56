"""Multi-scale deformable attention (Deformable DETR, eq. 3), which pixel decoder and transformer of detectors run."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .arguments import check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .portable import is_traced, is_transformed
from .reference import samples_of_level
from .registration import differentiable, needs_backward


def deformable_attention(
    value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor, backend: str | None = None
) -> Tensor:
    """Weighted sum of values that are sampled bilinearly from each level; values outside of a level are zero.

    Sums are in float32; locations and weights of half precision are taken as float32. On a GPU the samples of a level
    are computed again in the backward pass: those of all levels take levels * points times the memory of the output.

    Args:
        value: Values of all levels, one after the other, each row-major, (B, sum of H * W, heads, d).
        shapes: Height and width of each level, int64 (levels, 2).
        locations: Sampling points as (x, y), where 0 and 1 are the outer edges of the level,
            (B, Q, heads, levels, points, 2).
        weights: (B, Q, heads, levels, points).
        backend: 'cpu' (fused: no sample is stored) or 'reference'; by default see `choose_backend`.

    Returns:
        (B, Q, heads, d) in the dtype of `value`.
    """
    if value.dim() != 4:
        raise ValueError(f'value must be (B, N, heads, d), got shape {tuple(value.shape)}')
    for name, tensor in dict(value=value, locations=locations, weights=weights).items():
        check_dtype(name, tensor)
    batch, _, heads, _ = value.shape
    levels, queries, points = shapes.shape[0], *(weights.shape[axis] if weights.dim() == 5 else -1 for axis in (1, 4))
    full = torch.promote_types(value.dtype, torch.float32)
    locations, weights = (t.to(full) if t.dtype.itemsize == 2 else t for t in (locations, weights))
    check_fits('value', value, torch.int64, shapes=(shapes, (levels, 2)))
    check_fits('value', value, full, weights=(weights, (batch, queries, heads, levels, points)))
    check_fits('value', value, full, locations=(locations, (*weights.shape, 2)))
    if choose_backend(value.device, backend) == 'cpu':
        return differentiable('deformable_attention', value, shapes, locations, weights)
    sizes = shapes.tolist()  # one copy to the host for all levels
    lengths = [height * width for height, width in sizes]
    if sum(lengths) != value.shape[1] or min(lengths, default=0) < 0:
        raise ValueError(f'the levels of shapes must have the {value.shape[1]} tokens of value together, got {sizes}')
    is_kept = value.device.type != 'cuda' or is_traced() or is_transformed() or not needs_backward(value, locations)
    output = value.new_zeros(batch, queries, heads, value.shape[3], dtype=full)
    with without_autocast(value):
        for level, part in enumerate(value.to(full).split(lengths, 1)):
            inputs = part, sizes[level], locations[:, :, :, level], weights[:, :, :, level]
            output = output + (
                samples_of_level(*inputs)
                if is_kept
                else checkpoint(samples_of_level, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
    return output.to(value.dtype)
