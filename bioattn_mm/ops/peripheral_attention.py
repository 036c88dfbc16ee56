"""Peripheral attention of PerViT: content-based attention, weighted by position-based attention."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .arguments import autocast_dtype, check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .chunked_attention import attend_with_bias, chunk_numel
from .portable import is_exported, is_transformed
from .registration import differentiable

# The formula in PyTorch works on chunks of queries whose largest tensor has as many elements and fits into the cache.
CHUNK_NUMEL = 2**20
# The fused attention kernels of GPUs need heads whose width is a multiple of this.
HEAD_ALIGNMENT = 8


def peripheral_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plane: Tensor,
    scale: Tensor,
    shift: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float = 1e-5,
    backend: str | None = None,
) -> Tensor:
    """Attention whose weights are multiplied by a function of the positions of query and key (PerViT, eq. 5-8).

    For the query `q` at row `i` and column `j` of a grid (H, W)::

        window = plane[:, H - 1 - i : 2 H + 1 - i, W - 1 - j : 2 W + 1 - j]
        hidden = relu(scale[:, H - 1 - i, W - 1 - j] * window + shift[:, H - 1 - i, W - 1 - j])
        Phi_p = sigmoid(norm(conv(hidden)))         (one number for each head and key)
        A = softmax(q . key / sqrt(d) + log Phi_p)
        output = A . value

    `conv` is a 3 x 3 convolution without padding, `norm` an instance norm over the keys of the query, which takes its
    bias off again. Memory is linear in the number of tokens. Autocast casts queries, keys and values, except float64.

    Args:
        query: (B, heads, H * W, d), float16, bfloat16, float32 or float64.
        key: (B, heads, H * W, d), in the dtype of `query`.
        value: (B, heads, H * W, d), in the dtype of `query`.
        plane: Hidden layer before its norm, (channels, 2 H + 1, 2 W + 1); from here on float32, or float64 for such.
        scale: Factor of the hidden layer's norm for each query, in reverse order: (channels, H, W).
        shift: What this norm adds, likewise.
        conv_weight: (heads, channels, 3, 3).
        conv_bias: (heads,).
        norm_weight: (heads,).
        norm_bias: (heads,).
        eps: Added to the variance in `norm`.
        backend: 'cpu' (fused) or 'reference' (in chunks of queries); by default see `choose_backend`.

    Returns:
        (B, heads, H * W, d) in the dtype of the queries, or of autocast.
    """
    if query.dim() != 4 or 0 in query.shape[1:]:
        raise ValueError(f'query must be (B, heads, H * W, d), got shape {tuple(query.shape)}')
    check_dtype('query', query)
    if scale.dim() != 3 or scale.numel() == 0:
        raise ValueError(f'scale must be (channels, H, W), got shape {tuple(scale.shape)}')
    batch, heads, tokens, _ = query.shape
    channels, height, width = scale.shape
    if height * width != tokens:
        raise ValueError(f'scale is for a grid of {height} x {width} tokens, but query has {tokens}')
    check_fits('query', query, None, key=(key, query.shape), value=(value, query.shape))
    full = torch.promote_types(query.dtype, torch.float32)
    check_fits(
        'query',
        query,
        full,
        plane=(plane, (channels, 2 * height + 1, 2 * width + 1)),
        scale=(scale, scale.shape),
        shift=(shift, scale.shape),
        conv_weight=(conv_weight, (heads, channels, 3, 3)),
        conv_bias=(conv_bias, (heads,)),
        norm_weight=(norm_weight, (heads,)),
        norm_bias=(norm_bias, (heads,)),
    )
    position = plane, scale, shift, conv_weight, conv_bias, norm_weight, norm_bias, eps
    if choose_backend(query.device, backend) == 'cpu':
        return differentiable('peripheral_attention', query, key, value, *position)[0]
    query, key, value = (tensor.to(autocast_dtype(tensor)) for tensor in (query, key, value))
    if is_exported() or is_transformed():
        return attend(query, key, value, log_phi(position, slice(0, height), slice(0, width)))

    # The gradients of keys and values are sums over the chunks, for which half precision is not exact enough.
    keys, values = (tensor.to(full) for tensor in (key, value))

    def attend_chunk(query: Tensor, rows: slice, columns: slice) -> Tensor:
        bias = without_maximum(log_phi(position, rows, columns))
        return attend(query, keys.to(query.dtype), values.to(query.dtype), bias)

    if torch.is_grad_enabled():  # no tensor of all pairs of tokens, in the backward pass either
        attend_chunk = partial(checkpoint, attend_chunk, use_reentrant=False, preserve_rng_state=False)
    chunks = query_chunks((height, width), heads, channels, batch, query.device)
    return torch.cat([attend_chunk(query[:, :, queries], *rectangle) for queries, *rectangle in chunks], dim=2)


def log_phi(position: Sequence[Tensor | float], rows: slice, columns: slice) -> Tensor:
    """log Phi_p of the queries in a rectangle of the grid, whose slices have start and stop: (heads, queries, H * W).

    `position` are the arguments of `peripheral_attention` from `plane` to `eps`.
    """
    plane, scale, shift, conv_weight, conv_bias, norm_weight, norm_bias, eps = position
    height, width = scale.shape[1:]
    # The window of a query in row i starts at row H - 1 - i: windows are in the reverse order of queries.
    top, bottom, left, right = height - rows.stop, height - rows.start, width - columns.stop, width - columns.start
    with without_autocast(plane):
        if is_exported():  # of all queries; ONNX has no strided views
            for axis, length in ((1, height), (2, width)):
                start = length - 1 - torch.arange(length, device=plane.device)
                window = torch.arange(length + 2, device=plane.device) + start[:, None]
                plane = plane.index_select(axis, window.flatten())
            windows = plane.unflatten(2, (width, width + 2)).unflatten(1, (height, height + 2)).transpose(2, 3)
            scale, shift = (t.flip((1, 2))[..., None, None] for t in (scale, shift))
        else:
            windows = plane[:, top : bottom + height + 1, left : right + width + 1]
            windows = windows.unfold(1, height + 2, 1).unfold(2, width + 2, 1)
            scale, shift = (t[:, top:bottom, left:right, None, None] for t in (scale, shift))
        # Reordered to (queries, channels, ...) before the arithmetic: convolutions are fastest on this layout.
        windows, scale, shift = (t.permute(1, 2, 0, 3, 4).contiguous().flatten(0, 1) for t in (windows, scale, shift))
        x = F.conv2d(F.relu(torch.addcmul(shift, scale, windows)), conv_weight, conv_bias)
        # Not F.group_norm, which raises an error for a grid of a single token.
        x = torch.group_norm(x, conv_weight.shape[0], norm_weight, norm_bias, eps).flatten(2).transpose(0, 1)
        # ONNX would compute logsigmoid as log(sigmoid(x)): -inf for very negative x.
        return -F.softplus(-x) if is_exported() else F.logsigmoid(x).flip(1)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v with a bias (heads, queries, keys) that all images share."""
    channels = query.shape[-1]
    missing = -channels % HEAD_ALIGNMENT
    if missing:
        query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
    # The fused kernels need a batch axis in the bias.
    output = attend_with_bias(query, key, value, bias[None].to(query.dtype), channels**-0.5)
    return output[..., :channels]


def query_chunks(
    grid: tuple[int, int], heads: int, channels: int, batch: int, device: torch.device
) -> Iterator[tuple[slice, slice, slice]]:
    """Chunks of queries, consecutive in row-major order, whose largest tensor stays below `chunk_numel`.

    Yields:
        Indices of the queries, their rows and their columns: a number of whole rows, or a part of one.
    """
    height, width = grid
    keys = (height + 2) * (width + 2)
    numel_per_query = keys * max(channels, heads * batch)
    size = max(1, chunk_numel(device, CHUNK_NUMEL) // numel_per_query)
    for top in range(0, height, max(1, size // width)):
        for left in range(0, width, min(width, size)):
            bottom, right = min(top + max(1, size // width), height), min(left + size, width)
            first = top * width + left
            queries = slice(first, first + (bottom - top) * (right - left))
            yield queries, slice(top, bottom), slice(left, right)


def without_maximum(bias: Tensor) -> Tensor:
    """Minus its maximum over the keys, which softmax cancels: half precision is the most exact near 0."""
    return bias - bias.detach().amax(-1, keepdim=True)
