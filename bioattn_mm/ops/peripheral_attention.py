"""Peripheral attention of PerViT: content-based attention, weighted by position-based attention."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .arguments import autocast_dtype, check_dtype, check_fits, without_autocast
from .backends import choose_backend
from .chunked_attention import attend_with_bias
from .chunks import chunk_numel
from .portable import is_exported, is_transformed
from .registration import differentiable

# The formula in PyTorch works on chunks of queries whose largest tensor has as many elements and fits into the cache.
CHUNK_NUMEL = 2**20
# The fused attention kernels of GPUs need heads whose width is a multiple of this.
HEAD_ALIGNMENT = 8


class PeripheralAttentionInputs(NamedTuple):
    """The tensors of `peripheral_attention`, which documents them, in the order of its arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    plane: Tensor
    scale: Tensor
    shift: Tensor
    conv_weight: Tensor
    conv_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


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

    `conv` is a 3 x 3 convolution without padding, `norm` an instance norm over the keys of the query. The norm takes
    the bias of the convolution off again, so its gradient is zero. Memory is linear in the number of tokens, forward
    and backward.

    Under autocast, queries, keys and values are cast to its dtype, except float64. log Phi_p is computed in float32
    or float64.

    Args:
        query: (B, heads, H * W, d), float16, bfloat16, float32 or float64.
        key: (B, heads, H * W, d), in the dtype of `query`.
        value: (B, heads, H * W, d), in the dtype of `query`.
        plane: Hidden layer before its norm, for each offset between query and key: (channels, 2 H + 1, 2 W + 1),
            float64 for float64 queries, else float32, like all arguments that follow.
        scale: Factor of the hidden layer's norm for each query, in reverse order: (channels, H, W).
        shift: What this norm adds, likewise.
        conv_weight: (heads, channels, 3, 3).
        conv_bias: (heads,).
        norm_weight: (heads,).
        norm_bias: (heads,).
        eps: Added to the variance in `norm`.
        backend: 'cpu' (fused, C++) or 'reference' (PyTorch, in chunks of queries; any device). By default the
            environment variable BIOATTN_MM_BACKEND, or else the fastest for the device.

    Returns:
        (B, heads, H * W, d) in the dtype of the queries, or of autocast.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    inputs = PeripheralAttentionInputs(
        query, key, value, plane, scale, shift, conv_weight, conv_bias, norm_weight, norm_bias
    )
    _check(inputs)
    if choose_backend(query.device, backend) == 'cpu':
        return differentiable('peripheral_attention', *inputs, eps)[0]
    tokens = [tensor.to(autocast_dtype(tensor)) for tensor in inputs[:3]]
    if is_exported() or is_transformed():
        return attend(*tokens, log_phi_of_grid(*inputs[3:], eps))
    return _AttentionInChunks.apply(eps, *tokens, *inputs[3:])


def log_phi(
    plane: Tensor,
    scale: Tensor,
    shift: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    rows: slice,
    columns: slice,
) -> Tensor:
    """log Phi_p of the queries in a rectangle of the grid, in PyTorch: (heads, queries, H * W).

    Args:
        plane: As in `peripheral_attention`; so are all arguments up to `eps`.
        rows: Rows of the queries; start and stop have to be given.
        columns: Columns of the queries, the same.
    """
    height, width = scale.shape[1:]
    with without_autocast(plane):
        # The window of a query in row i starts at row H - 1 - i: windows are in the reverse order of queries.
        top, left = height - rows.stop, width - columns.stop
        bottom, right = height - rows.start, width - columns.start
        windows = plane[:, top : bottom + height + 1, left : right + width + 1]
        # (channels, rows, columns, H + 2, W + 2)
        windows = windows.unfold(1, height + 2, 1).unfold(2, width + 2, 1)
        scale, shift = (t[:, top:bottom, left:right, None, None] for t in (scale, shift))
        # Reordered to (queries, channels, ...) before the arithmetic: convolutions are fastest on this layout.
        windows, scale, shift = (t.permute(1, 2, 0, 3, 4).contiguous().flatten(0, 1) for t in (windows, scale, shift))
        x = F.conv2d(torch.addcmul(shift, scale, windows).relu_(), conv_weight, conv_bias)
        # Not F.group_norm, which raises an error for a grid of a single token.
        x = torch.group_norm(x, x.shape[1], norm_weight, norm_bias, eps)
        return F.logsigmoid(x).flatten(2).transpose(0, 1).flip(1)


def log_phi_of_grid(
    plane: Tensor,
    scale: Tensor,
    shift: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    """`log_phi` of all queries, without strided views, which ONNX has not; arguments as there."""
    height, width = scale.shape[1:]
    with without_autocast(plane):
        for axis, length in ((1, height), (2, width)):
            place = torch.arange(length, device=plane.device)
            # The window of the last query starts at 0.
            window = torch.arange(length + 2, device=plane.device) + (length - 1 - place)[:, None]
            plane = plane.index_select(axis, window.flatten())
        plane = plane.unflatten(2, (width, width + 2)).unflatten(1, (height, height + 2))
        windows = plane.permute(1, 3, 0, 2, 4).flatten(0, 1)  # (queries, channels, H + 2, W + 2)
        scale, shift = (t.flatten(1).flip(1).T[:, :, None, None] for t in (scale, shift))
        x = F.conv2d(F.relu(windows * scale + shift), conv_weight, conv_bias)
        x = torch.group_norm(x, conv_weight.shape[0], norm_weight, norm_bias, eps)
        # Equal to logsigmoid(x), which ONNX would compute as log(sigmoid(x)): -inf for very negative x.
        return -F.softplus(-x).flatten(2).transpose(0, 1)


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
    """Divide the queries of a grid into chunks, whose largest tensor stays below `chunk_numel`.

    A chunk is a number of whole rows, or a part of one row, so its queries are consecutive in row-major order.

    Yields:
        The indices of a chunk's queries, their rows and their columns.
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


class _AttentionInChunks(torch.autograd.Function):
    """Attention in chunks of queries, which never has a tensor of all pairs of tokens, forward or backward.

    The backward pass recomputes each chunk, as `torch.utils.checkpoint` would. That function leaves small tensors
    between the large ones of a chunk, which keep the CPU's allocator from reusing the memory.
    """

    @staticmethod
    def forward(ctx, eps: float, *tensors: Tensor) -> Tensor:
        """`tensors` are `PeripheralAttentionInputs`."""
        inputs = PeripheralAttentionInputs(*tensors)
        ctx.eps = eps
        ctx.save_for_backward(*inputs)
        output = torch.empty_like(inputs.query)
        for queries, rows, columns in _chunks(inputs):
            output[:, :, queries] = _attend_chunk(inputs.query[:, :, queries], inputs, eps, rows, columns)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, *others = (tensor.detach() for tensor in ctx.saved_tensors)
        needs_grad = ctx.needs_input_grad[2:]
        inputs = PeripheralAttentionInputs(query, *(t.requires_grad_(need) for t, need in zip(others, needs_grad)))
        wanted = [tensor for tensor, need in zip(others, needs_grad) if need]

        grad_query = torch.empty_like(query)
        # Gradients are summed over all chunks, for which half precision is not exact enough.
        sums = [torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in wanted]
        for queries, rows, columns in _chunks(inputs):
            with torch.enable_grad():
                chunk = query[:, :, queries].requires_grad_()
                output = _attend_chunk(chunk, inputs, ctx.eps, rows, columns)
            grad_query[:, :, queries], *grads = torch.autograd.grad(
                output, [chunk, *wanted], grad_output[:, :, queries]
            )
            for total, grad in zip(sums, grads):
                total += grad
        sums = iter(sums)
        return None, grad_query, *(next(sums).to(t.dtype) if need else None for t, need in zip(others, needs_grad))


def _chunks(inputs: PeripheralAttentionInputs) -> Iterator[tuple[slice, slice, slice]]:
    batch, heads = inputs.query.shape[:2]
    return query_chunks(tuple(inputs.scale.shape[1:]), heads, len(inputs.plane), batch, inputs.query.device)


def _attend_chunk(
    query: Tensor, inputs: PeripheralAttentionInputs, eps: float, rows: slice, columns: slice
) -> Tensor:
    bias = without_maximum(log_phi(*inputs[3:], eps, rows, columns))
    return attend(query, inputs.key, inputs.value, bias)


def without_maximum(bias: Tensor) -> Tensor:
    """The bias of logits minus its maximum over the keys of each query.

    Softmax cancels it, and in half precision the largest weights, near 0, are then the most exact.
    """
    return bias - bias.detach().amax(-1, keepdim=True)


def _check(inputs: PeripheralAttentionInputs) -> None:
    """Raise a `ValueError` that names the first argument that does not fit the others."""
    query, scale = inputs.query, inputs.scale
    if query.dim() != 4 or 0 in query.shape[1:]:
        raise ValueError(f'query must be (B, heads, H * W, d), got shape {tuple(query.shape)}')
    check_dtype('query', query)
    if scale.dim() != 3 or scale.numel() == 0:
        raise ValueError(f'scale must be (channels, H, W), got shape {tuple(scale.shape)}')
    batch, heads, tokens, head_dims = query.shape
    channels, height, width = scale.shape
    if height * width != tokens:
        raise ValueError(f'scale is for a grid of {height} x {width} tokens, but query has {tokens}')
    shapes = dict(
        key=tuple(query.shape),
        value=tuple(query.shape),
        plane=(channels, 2 * height + 1, 2 * width + 1),
        scale=(channels, height, width),
        shift=(channels, height, width),
        conv_weight=(heads, channels, 3, 3),
        conv_bias=(heads,),
        norm_weight=(heads,),
        norm_bias=(heads,),
    )
    position_dtype = torch.promote_types(query.dtype, torch.float32)
    for name, shape in shapes.items():
        dtype = None if name in ('key', 'value') else position_dtype
        check_fits(name, getattr(inputs, name), shape, 'query', query, dtype)
