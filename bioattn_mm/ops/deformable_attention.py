"""Multi-scale deformable attention (Deformable DETR, eq. 3), which pixel decoder and transformer of detectors run."""

import torch
from torch import Tensor

from .arguments import check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .constants import can_be_kept
from .reference import samples_of_level
from .registration import differentiable, needs_backward

NO_ORDER = 'deformable_attention on CUDA sums gradients in any order, and deterministic algorithms are asked for'


def deformable_attention(
    value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor, backend: str | None = None
) -> Tensor:
    """Weighted sum of values that are sampled bilinearly from each level; values outside of a level are zero.

    Sums are in float32; locations and weights of half precision are taken as float32. No sample is stored. On a GPU
    the order of the sums into gradients of values changes from run to run: where deterministic algorithms are asked
    for, PyTorch's formula runs.

    Args:
        value: Values of all levels, one after the other, each row-major, (B, sum of H * W, heads, d).
        shapes: Height and width of each level, int64 (levels, 2).
        locations: Sampling points as (x, y), where 0 and 1 are the outer edges of the level,
            (B, Q, heads, levels, points, 2).
        weights: (B, Q, heads, levels, points).
        backend: 'cpu' or 'cuda' (fused), or 'reference'; by default see `choose_backend`.

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
    is_ordered = torch.are_deterministic_algorithms_enabled() and needs_backward(value)
    unsupported = NO_ORDER if is_ordered and value.device.type != 'cpu' else None
    backend = choose_backend(value.device, backend, unsupported)
    # A GPU would have to be waited for, and graphs and transforms have no values: there the kernels compare.
    if backend == 'reference' or (backend == 'cpu' and can_be_kept()):
        sizes = shapes.tolist()
        lengths = [height * width for height, width in sizes]
        if sum(lengths) != value.shape[1] or min(lengths, default=0) < 0:
            raise ValueError(
                f'the levels of shapes must have the {value.shape[1]} tokens of value together, got {sizes}'
            )
    if backend != 'reference':
        return differentiable('deformable_attention', value, shapes, locations, weights)
    output = value.new_zeros(batch, queries, heads, value.shape[3], dtype=full)
    with without_autocast(value):
        for level, part in enumerate(value.to(full).split(lengths, 1)):
            output = output + samples_of_level(part, sizes[level], locations[:, :, :, level], weights[:, :, :, level])
    return output.to(value.dtype)
