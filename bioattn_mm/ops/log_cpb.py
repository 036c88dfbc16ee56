"""The table of TransNeXt's log-spaced continuous position bias (log-CPB)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import choose_backend
from .chunks import chunk_numel

# In PyTorch on a CPU, rows of the table are computed in chunks with at most this many hidden activations: they stay
# in the cache, and memory stays bounded for large grids.
MAX_HIDDEN_PER_CHUNK = 2**18


def log_cpb_table(
    vertical: Tensor, horizontal: Tensor, weight: Tensor, bias: Tensor, backend: str | None = None
) -> Tensor:
    """A two-layer MLP on every pair of a vertical and a horizontal coordinate (TransNeXt, section 3.1.3).

    The first layer is linear, so the caller computes its terms of each axis alone. This is the rest:

        table[h, r, c] = sum_k weight[h, k] relu(vertical[r, k] + horizontal[c, k]) + bias[h]

    Args:
        vertical: Term of the vertical coordinates in the first layer, and its bias: (R, hidden), float32 or float64.
        horizontal: Term of the horizontal coordinates in the first layer, (C, hidden).
        weight: Weight of the second layer, (heads, hidden).
        bias: Bias of the second layer, (heads,).
        backend: 'cpu' or 'cuda' (fused: the (R, C, hidden) activations are never in memory) or 'reference'; by
            default as for `aggregated_attention`.

    Returns:
        (heads, R, C).
    """
    if choose_backend(vertical.device, backend) != 'reference':
        return torch.ops.bioattn_mm.log_cpb_table(vertical, horizontal, weight, bias)
    hidden_per_chunk = chunk_numel(vertical.device, MAX_HIDDEN_PER_CHUNK)
    rows_per_chunk = max(1, hidden_per_chunk // max(1, horizontal.numel()))
    table = [
        F.linear(F.relu(rows[:, None] + horizontal, inplace=True), weight, bias)
        for rows in vertical.split(rows_per_chunk)
    ]
    return torch.cat(table).permute(2, 0, 1).contiguous()
