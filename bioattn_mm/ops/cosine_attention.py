"""Aggregated attention from the projections on: normalised and scaled queries, normalised keys, learnable tokens."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from .aggregated_attention import AggregatedAttentionInputs, aggregated_attention, why_not_on_cuda
from .arguments import check_fits, check_offsets, check_table, check_tokens, window_size_of, without_autocast
from .backends import choose_backend
from .constants import cached_constant
from .portable import is_traced, is_transformed
from .registration import apply, differentiable, needs_backward
from .relative_bias_attention import bias_of_table

SMALLEST_NORM = 1e-6


def normalised(
    query: Tensor,
    key_value: Tensor,
    pooled_key_value: Tensor,
    scale: Tensor,
    query_embedding: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    pooled_bias_weights: Tensor,
    pooled_bias_columns: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
) -> AggregatedAttentionInputs:
    """The tensors that `aggregated_attention` takes, from those of `cosine_attention`."""
    dtype, unit_query = query.dtype, unit_vectors(query)
    key, value = key_value.unbind(3)
    pooled_key, pooled_value = pooled_key_value.unbind(3)
    num_pooled = pooled_key_value.shape[1] * pooled_key_value.shape[2]
    window_size = window_size_of(window_bias.shape[1])
    log_number = log_num_keys(tuple(query.shape[1:3]), window_size, num_pooled, scale.dtype, query.device)
    # This is torch.einsum('bhwnd,ndk->bhwnk'), which would be slow in ONNX files.
    queries_of_heads = unit_query.movedim(3, 0).flatten(1, 3)
    token_weights = (queries_of_heads @ tokens.to(dtype)).unflatten(1, unit_query.shape[:3]).movedim(0, 3)
    pooled_bias, rows = bias_of_table(pooled_bias, pooled_bias_rows, pooled_bias_weights, pooled_bias_columns)
    return AggregatedAttentionInputs(
        query=((unit_query + query_embedding) * (scale[:, None] * log_number)).to(dtype),
        key=unit_vectors(key),
        value=value,
        pooled_key=unit_vectors(pooled_key),
        pooled_value=pooled_value,
        window_bias=window_bias.to(dtype),
        pooled_bias=pooled_bias.to(dtype),
        pooled_bias_rows=rows,
        token_weights=(token_weights + token_bias).to(dtype),
    )


@cached_constant
def log_num_keys(
    grid: tuple[int, int], window_size: int, num_pooled: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Log of the keys of each query: the window's tokens inside of the grid plus the pooled tokens, (H, W, 1, 1)."""
    margin = window_size // 2

    def num_inside(length: int) -> Tensor:
        position = torch.arange(length, device=device)
        return (position + margin).clamp(max=length - 1) - (position - margin).clamp(min=0) + 1

    number = torch.outer(num_inside(grid[0]), num_inside(grid[1])) + num_pooled
    return number.to(dtype).log()[:, :, None, None]


def unit_vectors(x: Tensor) -> Tensor:
    """Divide the last axis by its l2 norm, or by 1e-6 if the norm is smaller, so that zeros stay zero.

    In float32, as squares of small numbers are 0 in float16. The gradient at zero is 1e6: padding must not become 0.
    """
    full = x.to(torch.promote_types(x.dtype, torch.float32))
    # A compiler finds a backward pass of its own, and torch.compile fails at this one where sizes are symbols.
    if full.requires_grad and not (is_traced() or is_transformed()):
        return apply(_UnitVectors, full)[0].to(x.dtype)
    # F.normalize, which in ONNX files repeats the norm for every channel.
    return (full / full.norm(dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)).to(x.dtype)


class _UnitVectors(torch.autograd.Function):
    """Unit vectors and norms, with a backward pass of a third as many launches as PyTorch's."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
        unit = x / norm
        ctx.save_for_backward(unit, norm)
        ctx.set_materialize_grads(False)
        return unit, norm

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor | None, grad_norm: Tensor | None) -> Tensor:
        unit, norm = ctx.saved_tensors
        grad = torch.zeros_like(unit) if grad is None else grad
        # The part along the vector changes its norm alone. A norm below the smallest is a constant.
        along = (grad * unit).sum(-1, keepdim=True)
        if grad_norm is not None:  # in a second derivative
            along = along - grad_norm * norm
        along = along.masked_fill_(norm <= SMALLEST_NORM, 0)
        return torch.addcmul(grad, unit, along, value=-1).div_(norm)


def cosine_attention(
    query: Tensor,
    key_value: Tensor,
    pooled_key_value: Tensor,
    scale: Tensor,
    query_embedding: Tensor,
    window_bias: Tensor,
    pooled_bias: Tensor,
    pooled_bias_rows: Tensor,
    pooled_bias_weights: Tensor,
    pooled_bias_columns: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
    backend: str | None = None,
) -> Tensor:
    """`aggregated_attention` of what TransNeXt's projections give (eq. 9 to 14), without autocast.

    For the query at row `i` and column `j`, with `n` keys, those of its window inside of the image and the pooled
    ones, and with l2-normalised queries `q` and keys::

        query = (q + query_embedding) scale log(n)
        token_weights = q tokens + token_bias
        pooled_bias[:, pooled_bias_rows[i, u, 0], pooled_bias_columns[j, v]] is the bias of pooled key (u, v)

    or a weighted sum of `n` such rows, as bilinear resizing makes it of four.

    Projections may be float16, bfloat16, float32 or float64. The rest is float32, for float64 projections float64.

    Args:
        query: Projected queries, (B, H, W, heads, d).
        key_value: Projected keys and values, (B, H, W, 2, heads, d).
        pooled_key_value: The same of the pooled grid, (B, Ph, Pw, 2, heads, d).
        scale: Factor of each head's queries, positive, (heads,).
        query_embedding: (heads, d).
        window_bias: Learned bias of each window offset, (heads, k * k) with k odd; row-major from the top left.
        pooled_bias: Table of position biases, (heads, R, C), finite where rows are summed.
        pooled_bias_rows: Rows of the table for each pair of query row and pooled row, int64 (H, Ph, n).
        pooled_bias_weights: Weights of these rows but the last, whose weight is what is missing to 1: (H, Ph, n - 1).
        pooled_bias_columns: Column of the table for each pair of query column and pooled column, int64 (W, Pw).
        tokens: Learnable tokens, (heads, d, k * k).
        token_bias: (heads, k * k).
        backend: As of `aggregated_attention`.

    Returns:
        (B, H, W, heads, d) in the dtype of `query`.
    """
    check_tokens('query', query)
    batch, height, width, heads, channels = query.shape
    offsets = check_offsets('window_bias', window_bias, '(heads, k * k)')
    if pooled_key_value.dim() != 6:
        shape = tuple(pooled_key_value.shape)
        raise ValueError(f'pooled_key_value must be (B, Ph, Pw, 2, heads, d), got shape {shape}')
    pooled_height, pooled_width = pooled_key_value.shape[1:3]
    check_fits(
        'query',
        query,
        query.dtype,
        key_value=(key_value, (batch, height, width, 2, heads, channels)),
        pooled_key_value=(pooled_key_value, (batch, pooled_height, pooled_width, 2, heads, channels)),
    )
    table = pooled_bias, pooled_bias_rows, pooled_bias_weights, pooled_bias_columns
    check_table('pooled_bias', query, (pooled_height, pooled_width), *table)
    check_fits(
        'query',
        query,
        torch.promote_types(query.dtype, torch.float32),
        scale=(scale, (heads,)),
        query_embedding=(query_embedding, (heads, channels)),
        window_bias=(window_bias, (heads, offsets)),
        tokens=(tokens, (heads, channels, offsets)),
        token_bias=(token_bias, (heads, offsets)),
    )
    inputs = query, key_value, pooled_key_value, scale, query_embedding, window_bias, *table, tokens, token_bias
    unsupported = why_not_on_cuda(query, query.dtype, window_bias.shape[1])
    if choose_backend(query.device, backend, unsupported) == 'reference':
        with without_autocast(query):
            return aggregated_attention(*normalised(*inputs), backend='reference')
    return differentiable('cosine_attention', *inputs, needs_backward(*inputs))[0]
