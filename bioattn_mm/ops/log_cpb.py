"""The table of TransNeXt's log-spaced continuous position bias (log-CPB)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_fits, without_autocast
from .backends import choose_backend
from .chunked_attention import chunk_numel
from .portable import is_exported
from .registration import differentiable

# In PyTorch on a CPU, rows of the table are computed in chunks with at most this many hidden activations: they stay
# in the cache, and memory stays bounded for large grids.
MAX_HIDDEN_PER_CHUNK = 2**18


def log_cpb_table(
    vertical: Tensor,
    horizontal: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    backend: str | None = None,
) -> Tensor:
    """A two-layer MLP on every pair of a vertical and a horizontal coordinate (TransNeXt, section 3.1.3).

        hidden[k, r, c] = relu(hidden_weight[k] . (vertical[r], horizontal[c]) + hidden_bias[k])
        table[h, r, c] = sum_k weight[h, k] hidden[k, r, c] + bias[h]

    The layers of several MLPs may be stacked: with an axis of MLPs first, the tables are computed together.

    Args:
        vertical: Vertical coordinates, (R,), float32 or float64 as all others. Coordinates have no gradient.
        horizontal: Horizontal coordinates, (C,).
        hidden_weight: Weight of the first layer, (hidden, 2) or (MLPs, hidden, 2).
        hidden_bias: Bias of the first layer, (hidden,) or (MLPs, hidden).
        weight: Weight of the second layer, (heads, hidden) or (MLPs, heads, hidden).
        bias: Bias of the second layer, (heads,) or (MLPs, heads).
        backend: 'cpu' or 'cuda', without activations in memory, or 'reference'; by default see `choose_backend`.

    Returns:
        (heads, R, C) or (MLPs, heads, R, C) in the dtype of the arguments, under autocast as well.

    Raises:
        ValueError: The arguments do not fit each other, or coordinates require a gradient.
    """
    if vertical.dtype not in (torch.float32, torch.float64):
        raise ValueError(f'vertical must be float32 or float64, got {vertical.dtype}')
    for name, coordinates in dict(vertical=vertical, horizontal=horizontal).items():
        if coordinates.dim() != 1:
            raise ValueError(f'{name} must be coordinates along one axis, got shape {tuple(coordinates.shape)}')
        if coordinates.requires_grad:
            raise ValueError(f'{name} requires a gradient, and coordinates have none: pass {name}.detach()')
    if weight.dim() not in (2, 3) or (weight.dim() == 3 and len(weight) == 0):
        expected = '(heads, hidden), or (MLPs, heads, hidden) of one MLP or more'
        raise ValueError(f'weight must be {expected}, got shape {tuple(weight.shape)}')
    *mlps, heads, hidden = weight.shape
    of_any_shape = dict(horizontal=(horizontal, horizontal.shape), weight=(weight, weight.shape))
    check_fits('vertical', vertical, vertical.dtype, **of_any_shape)
    of_hidden = dict(hidden_weight=(hidden_weight, (*mlps, hidden, 2)), hidden_bias=(hidden_bias, (*mlps, hidden)))
    check_fits('weight', weight, weight.dtype, **of_hidden, bias=(bias, (*mlps, heads)))
    if choose_backend(vertical.device, backend) != 'reference':
        return differentiable('log_cpb_table', vertical, horizontal, hidden_weight, hidden_bias, weight, bias)
    with without_autocast(vertical):
        if not mlps:
            return _table_of_mlp(vertical, horizontal, hidden_weight, hidden_bias, weight, bias)
        of_each = zip(hidden_weight, hidden_bias, weight, bias)
        return torch.stack([_table_of_mlp(vertical, horizontal, *layers) for layers in of_each])


def _table_of_mlp(
    vertical: Tensor, horizontal: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    # The first layer is a sum of a term for each axis.
    vertical = torch.addcmul(hidden_bias, vertical[:, None], hidden_weight[:, 0])  # (R, hidden)
    horizontal = torch.outer(horizontal, hidden_weight[:, 1])  # (C, hidden)
    if is_exported():
        return F.linear(F.relu(vertical[:, None] + horizontal), weight, bias).permute(2, 0, 1)
    hidden_per_chunk = chunk_numel(vertical.device, MAX_HIDDEN_PER_CHUNK)
    rows_per_chunk = max(1, hidden_per_chunk // max(1, horizontal.numel()))
    table = [
        F.linear(F.relu(rows[:, None] + horizontal, inplace=True), weight, bias)
        for rows in vertical.split(rows_per_chunk)
    ]
    return torch.cat(table).permute(2, 0, 1).contiguous()
