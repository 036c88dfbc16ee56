"""Aggregated attention: a sliding window and a pooled grid under one softmax, plus learnable tokens."""

import torch
from torch import Tensor

from .arguments import autocast, autocast_dtype, check_offsets, check_shape_and_device, check_tokens
from .backends import choose_backend
from .reference import aggregated_attention_reference


def aggregated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    token_weights: Tensor,
    backend: str | None = None,
) -> Tensor:
    """Attend from every position to its window and to a pooled grid of the whole image (TransNeXt, eq. 10-14).

    For the query at row `i` and column `j`, with `s` its scaled query::

        A_window = s . k_window + window_bias           (-inf where the window leaves the image)
        A_pool[u, v] = s . k_pool[u, v] + pooled_bias[:, pooled_bias_rows[i, u], j, v]
        A = softmax(concat(A_window, A_pool))
        output = (A_window' + token_weights) V_window + A_pool' V_pool      (' marks the two parts of A)

    Values outside the image count as zero. All floating-point arguments have one dtype; under autocast they are cast
    to its dtype, as for a matrix product, which leaves float64 alone. Half-precision inputs are multiplied and summed
    in float32.

    The pooled bias has one row of biases for each distinct vertical offset between a query row and a pooled row,
    not for each pair of them: between a grid of H rows and its average pooling there are about 2 H such offsets.
    A bias given for every pair, (heads, H, Ph, W, Pw), is passed as `flatten(1, 2)` with
    `torch.arange(H * Ph).view(H, Ph)` for its rows.

    Args:
        query: Scaled queries, (B, H, W, heads, d).
        key: Window keys, (B, H, W, heads, d).
        value: Window values, (B, H, W, heads, d).
        pooled_key: Keys of the pooled grid, (B, Ph, Pw, heads, d).
        pooled_value: Values of the pooled grid, (B, Ph, Pw, heads, d).
        window_bias: Learned bias of each window offset, (heads, k * k) with k odd; row-major from the top left.
        pooled_bias: Position bias of the pooled keys, (heads, R, W, Pw).
        pooled_bias_rows: Row of `pooled_bias` for each pair of query row and pooled row, int64 (H, Ph).
        token_weights: Added to the window weights after the softmax, (B, H, W, heads, k * k).
        backend: 'cpu' or 'cuda' (fused, C++; on CUDA d = 8, 16, ... 64, k <= 9, no float64), or 'reference' (PyTorch,
            any device). By default the environment variable BIOATTN_MM_BACKEND, or else the fastest that takes the
            arguments.

    Returns:
        (B, H, W, heads, d) in the dtype of the arguments, or of autocast.

    Raises:
        ValueError: The arguments do not fit each other, or the backend does not fit them.
    """
    _check_arguments(
        query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights
    )
    if backend is None and not _fits_cuda(query, window_bias):
        backend = 'reference'
    arguments = (
        query, key, value, pooled_key, pooled_value, window_bias, pooled_bias, pooled_bias_rows, token_weights
    )  # fmt: skip
    if choose_backend(query.device, backend) != 'reference':
        return torch.ops.bioattn_mm.aggregated_attention(*arguments)
    arguments, dtype = autocast(*arguments), autocast_dtype(query)
    with torch.autocast(query.device.type, enabled=False):
        # What the operators do: storage in `dtype`, arithmetic in float32 or float64.
        compute_dtype = torch.promote_types(dtype, torch.float32)
        output = aggregated_attention_reference(
            *(t.to(compute_dtype) if t.is_floating_point() else t for t in arguments)
        )
        return output.to(dtype)


def _fits_cuda(query: Tensor, window_bias: Tensor) -> bool:
    """Whether the CUDA kernels, if `query` is on a GPU, have this case; PyTorch has every case."""
    channels = query.shape[-1]
    return not query.is_cuda or (
        query.dtype != torch.float64 and channels % 8 == 0 and channels <= 64 and window_bias.shape[1] <= 81
    )


def _check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    token_weights: Tensor,
) -> None:
    """Raise a `ValueError` that names the first argument that does not fit the others."""
    check_tokens('query', query)
    batch, height, width, heads, channels = query.shape
    offsets = check_offsets('window_bias', window_bias, '(heads, k * k)')
    if pooled_key.dim() != 5:
        raise ValueError(f'pooled_key must be (B, Ph, Pw, heads, d), got shape {tuple(pooled_key.shape)}')
    pooled_height, pooled_width = pooled_key.shape[1:3]
    bias_rows = pooled_bias.shape[1] if pooled_bias.dim() == 4 else -1
    expected_shapes = dict(
        key=(key, (batch, height, width, heads, channels)),
        value=(value, (batch, height, width, heads, channels)),
        pooled_key=(pooled_key, (batch, pooled_height, pooled_width, heads, channels)),
        pooled_value=(pooled_value, (batch, pooled_height, pooled_width, heads, channels)),
        window_bias=(window_bias, (heads, offsets)),
        pooled_bias=(pooled_bias, (heads, bias_rows, width, pooled_width)),
        pooled_bias_rows=(pooled_bias_rows, (height, pooled_height)),
        token_weights=(token_weights, (batch, height, width, heads, offsets)),
    )
    for name, (tensor, shape) in expected_shapes.items():
        check_shape_and_device('query', query, name, tensor, shape)
        if name != 'pooled_bias_rows' and autocast_dtype(tensor) != autocast_dtype(query):
            raise ValueError(f'{name} must be {query.dtype} to fit query, got {tensor.dtype}')
    if pooled_bias_rows.dtype != torch.int64:
        raise ValueError(f'pooled_bias_rows must be torch.int64 to fit query, got {pooled_bias_rows.dtype}')
