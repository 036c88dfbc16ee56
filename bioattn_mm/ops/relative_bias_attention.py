"""Attention between all tokens of a grid with a relative position bias: one value for each offset and head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import autocast_dtype, check_fits, check_table, check_tokens
from .backends import choose_backend
from .chunked_attention import attention_in_chunks
from .constants import cached_constant
from .registration import differentiable
from .relative_bias import bias_of_pairs, index_of_offsets, rows_of_pairs


def relative_bias_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float | None = None,
    backend: str | None = None,
    pairs: Sequence[Tensor] | None = None,
) -> Tensor:
    """Attend from every token of a grid to all of them, with a bias that depends on the offset between the two.

    For the query at row `i` and column `j` and the key at row `u` and column `v`::

        A = softmax over (u, v) of (scale * query[i, j] . key[u, v] + bias[:, i - u + H - 1, j - v + W - 1])
        output[i, j] = sum over (u, v) of A[u, v] value[u, v]

    On the CPU weights exist for some neighbouring queries at a time. Products of half precision are summed in
    float32; processors with instructions for bfloat16 round weights to it.

    Args:
        query: (B, H, W, heads, d). Autocast casts query, key and value, as for a matrix product, except float64.
        key: (B, H, W, heads, d), in the dtype of `query`.
        value: (B, H, W, heads, d), in the dtype of `query`.
        bias: Bias of each offset, (heads, 2 H - 1, 2 W - 1): float64 if `query` is, else float32.
        scale: Factor of the products, d^-1/2 by default.
        pairs: Rows of `bias`, then any (heads, R, C), for each pair of query and key row, int64 (H, H, n), weights
            of rows that are summed, (H, H, n - 1), and the column for each pair of columns, int64 (W, W), as in
            `cosine_attention`; by default those of the offsets.
        backend: 'cpu' (fused) or 'reference' (for some rows of queries at a time); see `choose_backend`.

    Returns:
        (B, H, W, heads, d) in the dtype of `query`, or of autocast.
    """
    check_tokens('query', query)
    height, width, heads, channels = query.shape[1:]
    check_fits('query', query, None, key=(key, query.shape), value=(value, query.shape))
    if pairs is None:
        full = torch.promote_types(query.dtype, torch.float32)
        check_fits('query', query, full, bias=(bias, (heads, 2 * height - 1, 2 * width - 1)))
    else:
        check_table('bias', query, (height, width), bias, *pairs)
    scale = max(channels, 1) ** -0.5 if scale is None else scale
    if choose_backend(query.device, backend) == 'cpu':
        pairs = _pairs_of_offsets(height, width, bias.dtype, bias.device) if pairs is None else pairs
        return differentiable('relative_bias_attention', query, key, value, bias, *pairs, scale)[0]
    query, key, value = (tensor.to(autocast_dtype(tensor)) for tensor in (query, key, value))

    def bias_of_queries(rows: slice) -> Tensor:
        if pairs is None:
            return bias_of_pairs(bias, (height, width), rows)
        of_rows, weights, columns = pairs
        part = rows_of_pairs(bias, of_rows[rows], weights[rows]).index_select(3, columns.flatten())
        return part.unflatten(3, columns.shape).transpose(2, 3).flatten(3).flatten(1, 2)

    return attention_in_chunks(query, key, value, bias_of_queries, scale)


@cached_constant
def _pairs_of_offsets(height: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """`pairs` of a bias of all offsets."""
    rows, columns = (index_of_offsets(length, device) for length in (height, width))
    return rows[..., None], torch.empty(height, height, 0, dtype=dtype, device=device), columns
