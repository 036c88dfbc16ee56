"""Multi-scale deformable attention (Deformable DETR, eq. 3), which pixel decoder and transformer of detectors run."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .constants import can_be_kept
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
    batch, tokens, heads, channels = value.shape
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
        if sum(lengths) != tokens or min(lengths, default=0) < 0:
            raise ValueError(f'the levels of shapes must have the {tokens} tokens of value together, got {sizes}')
    if backend != 'reference':
        return differentiable('deformable_attention', value, shapes, locations, weights)
    # PyTorch samples (B * heads, d, H, W), with the outer edges at -1 and 1.
    grids, weights = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (2 * locations - 1, weights))
    output = value.new_zeros(batch * heads, channels, queries, dtype=full)
    with without_autocast(value):
        for level, (part, size) in enumerate(zip(value.to(full).split(lengths, 1), sizes)):
            maps = part.permute(0, 2, 3, 1).flatten(0, 1).unflatten(2, size)
            samples = F.grid_sample(maps, grids[:, :, level], 'bilinear', 'zeros', align_corners=False)
            output = output + (samples * weights[:, None, :, level]).sum(-1)
    return output.unflatten(0, (batch, heads)).permute(0, 3, 1, 2).to(value.dtype)
