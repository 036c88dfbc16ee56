"""The two halves of a block of TransNeXt, each one operator: a GPU does not wait for Python between their kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .add_norm import why_not_norm
from .arguments import without_autocast
from .backends import choose_backend
from .cosine_attention import cosine_attention
from .gated_convolution import gated_convolution
from .gelu_pool import gelu_pool
from .registration import differentiable, needs_backward


def aggregate(
    x: Tensor,
    q_weight: Tensor,
    q_bias: Tensor,
    kv_weight: Tensor,
    kv_bias: Tensor,
    pool_weight: Tensor,
    pool_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    *of_attention: Tensor,
    eps: float,
    backend: str | None = None,
) -> Tensor:
    """Aggregated attention from normalised tokens to what its last layer projects (TransNeXt, eq. 10 to 14).

    Args:
        x: (B, H, W, C), float16, bfloat16, float32 or float64.
        q_weight: Weight of the linear layer of queries, (C, C), in the dtype of `x`.
        q_bias: (C,), in the dtype of `x`.
        kv_weight: That of keys and values, of tokens and of pooled ones, (2 C, C), in the dtype of `x`.
        kv_bias: (2 C,), in the dtype of `x`.
        pool_weight: That of the tokens to pool, a 1 x 1 convolution, (C, C, 1, 1), in the dtype of `x`.
        pool_bias: (C,), in the dtype of `x`.
        norm_weight: Weight of the norm of pooled tokens, (C,), in the dtype of `x`.
        norm_bias: (C,), in the dtype of `x`.
        *of_attention: The arguments of `cosine_attention` from `scale` on.
        eps: What the norm adds to the variance.
        backend: 'cpu' (no float16, C at least 16), 'cuda' (as `cosine_attention`; no gradients of a pooled grid that
            does not divide that of `x`) or 'reference'.

    Returns:
        (B, H, W, C) in the dtype of `x`.
    """
    linear = q_weight, q_bias, kv_weight, kv_bias, pool_weight, pool_bias
    inputs = x, *linear, *norm_of(x, norm_weight, norm_bias), *of_attention
    if choose_backend(x.device, backend, why_not_norm(x, 'aggregate')) != 'reference':
        return differentiable('aggregate', *inputs, eps, needs_backward(*inputs))[0]
    scale, _, _, _, rows, columns, *_ = of_attention
    heads, grid = len(scale), (rows.shape[1], columns.shape[1])
    with without_autocast(x):
        query, key_value = F.linear(x, q_weight, q_bias), F.linear(x, kv_weight, kv_bias)
        pooled = gelu_pool(F.linear(x, pool_weight.flatten(1), pool_bias), grid, 'reference')
        pooled = F.layer_norm(pooled, norm_weight.shape, norm_weight, norm_bias, eps)
        key_values = (
            tokens.unflatten(-1, (2, heads, -1)) for tokens in (key_value, F.linear(pooled, kv_weight, kv_bias))
        )
    query = query.unflatten(-1, (heads, -1))
    return cosine_attention(query, *key_values, *of_attention, backend='reference').flatten(3)


def after_attention(
    x: Tensor,
    attended: Tensor,
    *parameters: Tensor | float | None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The rest of a block: last layer of the attention, residual, norm, ConvGLU, residual, and the next norm.

    Args:
        x: The tokens that the block takes, (B, H, W, C), float16, bfloat16, float32 or float64.
        attended: What the last layer of the attention projects, as `x`; without the operator in any dtype.
        *parameters: Weight and bias of `proj`, `norm2`, `fc1`, `dwconv`, `fc2` and the next norm, factors of the two
            branches, and eps of the norms. Those of norms have the dtype of `x`, bias of `fc1` and the convolution at
            least float32, the others that of `attended`; factors are (B,), at least float32, or None for 1.
        backend: As of `add_norm`; on the CPU the convolution has 16, 32, ... channels.

    Returns:
        The block's tokens, and their next norm: (B, H, W, C), in the dtype of `x`.
    """
    *parameters, attention_factor, mlp_factor, eps = parameters
    proj, norm, (fc1_weight, fc1_bias), conv, fc2, next_norm = zip(parameters[::2], parameters[1::2], strict=True)
    if x.dtype == attended.dtype:
        unsupported = why_not_norm(x, 'after_attention')
        if choose_backend(x.device, backend, unsupported) != 'reference':
            norm, next_norm = norm_of(x, *norm), norm_of(x, *next_norm)
            inputs = *proj, *norm, fc1_weight, fc1_bias, *conv, *fc2, *next_norm, attention_factor, mlp_factor, eps
            next_normed, output, *_ = differentiable('after_attention', x, attended, *inputs)
            return output, next_normed
    with without_autocast(x):
        x = _add(x, F.linear(attended, *proj), attention_factor)
        normed = F.layer_norm(x, x.shape[3:], *norm, eps).to(attended.dtype)
        gated = gated_convolution(F.linear(normed, fc1_weight), *conv, backend, fc1_bias)
        x = _add(x, F.linear(gated, *fc2), mlp_factor)
        return x, F.layer_norm(x, x.shape[3:], *next_norm, eps)


def _add(x: Tensor, branch: Tensor, factor: Tensor | None) -> Tensor:
    return x + (branch if factor is None else branch * factor.to(branch.dtype)[:, None, None, None])


def norm_of(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Parameters of a norm as kernels take them: on the CPU in full precision, as under PyTorch's autocast."""
    full = torch.promote_types(x.dtype, torch.float32)
    return (weight.to(full), bias.to(full)) if x.device.type == 'cpu' else (weight, bias)
