"""Attention in PyTorch with any bias, for some rows of queries after the other, so that memory stays bounded."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .portable import is_exported, is_symbol, is_transformed

# Attention weights of a chunk, at most, unless one row of queries has more: they stay in the cache.
MAX_WEIGHTS_PER_CHUNK = 2**20
# On a GPU, elements of the largest tensor of a chunk: 256 MiB in float32, and up to six times that with others and
# gradients. Chunks are as large as memory allows, because a launch takes microseconds however little it does.
NUMEL_ON_A_GPU = 2**26


def chunk_numel(device: torch.device, on_cpu: int) -> int:
    """Elements that the largest tensor of a chunk may have: on a CPU as many as stay in its cache, `on_cpu`."""
    return on_cpu if device.type == 'cpu' else NUMEL_ON_A_GPU


def attend_with_bias(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Scaled dot-product attention, (B, heads, N, d), with a bias, (1, heads, N, M), also of an empty batch.

    PyTorch's from 2.15 on returns an output of no elements that does not depend on its arguments: a gradient with
    respect to one of them is then an error.
    """
    if not is_exported() and query.numel() == 0:
        return (scale * query @ key.transpose(2, 3) + bias).softmax(-1) @ value
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


def attention_in_chunks(
    query: Tensor, key: Tensor, value: Tensor, bias_of_rows: Callable[[slice], Tensor], scale: float
) -> Tensor:
    """Attention from a grid to itself, or to another one, with a bias computed for some rows of queries at a time.

    In training the bias and weights of chunks are computed again in the backward pass. On a GPU most grids are one
    chunk, which kernels of PyTorch compute with its bias; the memory of a chunk is bounded there, too.

    Queries and the result are (B, H, W, heads, d), keys and values (B, H', W', heads, d); `bias_of_rows` gives the
    bias of the queries in some rows, (heads, rows * W, H' * W'); `scale` is the factor of the products.
    """
    batch, height, width, heads, _ = query.shape
    key, value = (tensor.flatten(1, 2).transpose(1, 2) for tensor in (key, value))  # (B, heads, N, d)

    def attend_from(query: Tensor, rows: slice) -> Tensor:
        chunk = query[:, rows].flatten(1, 2).transpose(1, 2)
        bias = bias_of_rows(rows).to(query.dtype)[None]
        return attend_with_bias(chunk, key.to(query.dtype), value.to(query.dtype), bias, scale).transpose(1, 2)

    if is_exported() or any(map(is_symbol, (batch, height, width, key.shape[2]))):
        return attend_from(query, slice(None)).reshape(query.shape)
    weights_per_chunk = chunk_numel(query.device, MAX_WEIGHTS_PER_CHUNK)
    rows_per_chunk = max(1, weights_per_chunk // max(1, batch * heads * width * key.shape[2]))
    # Transforms of torch.func know no checkpoints: they keep all weights.
    if torch.is_grad_enabled() and rows_per_chunk < height and not is_transformed():
        # The gradients of keys and values are sums over the chunks, for which half precision is not exact enough.
        key, value = (tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in (key, value))
        attend_from = partial(checkpoint, attend_from, use_reentrant=False, preserve_rng_state=False)
    chunks = [slice(top, top + rows_per_chunk) for top in range(0, height, rows_per_chunk)]
    return torch.cat([attend_from(query, rows) for rows in chunks], dim=1).reshape(query.shape)
