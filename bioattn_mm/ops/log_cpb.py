"""Table of the log-spaced continuous position bias over two axes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends import choose_backend

# In PyTorch the hidden activations are formed for as many rows at a time as fit this many elements, which keeps
# them in the cache and memory bounded for large grids.
MAX_HIDDEN_PER_CHUNK = 2**18


def log_cpb_table(
    vertical: Tensor, horizontal: Tensor, weight: Tensor, bias: Tensor, backend: str | None = None
) -> Tensor:
    """A two-layer MLP on every pair of a vertical and a horizontal coordinate (TransNeXt, section 3.2).

    The first layer is linear in the pair, so it is given as one term for each axis; what is left is::

        table[h, r, c] = sum_k weight[h, k] relu(vertical[r, k] + horizontal[c, k]) + bias[h]

    Args:
        vertical: First layer's term of the vertical coordinates, with its bias, (R, hidden), float32 or float64.
        horizontal: First layer's term of the horizontal coordinates, (C, hidden).
        weight: Second layer, (heads, hidden).
        bias: Second layer, (heads,).
        backend: 'cpu' (fused: the (R, C, hidden) activations never exist) or 'reference'; by default as for
            `aggregated_attention`.

    Returns:
        (heads, R, C).
    """
    if choose_backend(vertical.device, backend) == 'cpu':
        return torch.ops.bioattn_mm.log_cpb_table(vertical, horizontal, weight, bias)
    rows_per_chunk = max(1, MAX_HIDDEN_PER_CHUNK // horizontal.numel())
    table = [
        F.linear(F.relu(rows[:, None] + horizontal, inplace=True), weight, bias)
        for rows in vertical.split(rows_per_chunk)
    ]
    return torch.cat(table).permute(2, 0, 1).contiguous()
