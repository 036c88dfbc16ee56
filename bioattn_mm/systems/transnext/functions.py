"""The two halves of a block as functions of autograd with backward passes of their own, which call operators alone.

They give what the formulas in `attention.py`, `conv_glu.py` and `common/blocks.py` give, in a tenth of their Python
calls: a GPU would wait for these. `blocks.py` decides where they run, and casts the weights that they take.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ...ops import gelu_pool
from ...ops.registration import BELOW_AUTOGRAD, OTHERWISE, apply

OPERATORS = torch.ops.bioattn_mm
NO_SECOND_DERIVATIVE = f'TransNeXt has no second derivative; {OTHERWISE}'


class Aggregate(torch.autograd.Function):
    """Aggregated attention from normalised tokens to what its last layer projects (TransNeXt, eq. 10 to 14)."""

    @staticmethod
    def forward(ctx: FunctionCtx | None, x: Tensor, *arguments: object) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); `ctx` is None where there will be no backward pass.

        The arguments are weights, (4 C, C), and biases of `q`, `kv` and `pool_proj` together, those of `pool_norm`,
        what `cosine_attention` takes after keys and values, eps of the norm, and whether `gelu_pool_norm` pools or
        `gelu_pool`, whose backward pass the CPU alone has. Weights have the dtype of `x`, on the CPU those of the
        norm full precision.
        """
        weight, bias, norm_weight, norm_bias, *of_attention, eps, pools_with_norm = arguments
        scale, _, _, _, rows, columns, *_ = of_attention
        grid, heads, pooled_grid = x.shape[:3], scale.shape[0], (rows.shape[1], columns.shape[1])
        with torch._C._ExcludeDispatchKeyGuard(BELOW_AUTOGRAD):
            x, channels = x.flatten(0, 2), x.shape[3]
            # One product for the three linear layers; the kernels read their parts where they are.
            projected = F.linear(x, weight, bias).view(*grid, 4, heads, -1)
            query, *_, to_pool = projected.unbind(3)
            to_pool = to_pool.flatten(3)
            if pools_with_norm:
                normed, pooled, mean, rstd = OPERATORS.gelu_pool_norm.default(
                    to_pool, norm_weight, norm_bias, *pooled_grid, eps
                )
            else:
                is_cpu = x.device.type == 'cpu'
                pooled = (
                    OPERATORS.gelu_pool.default(to_pool, *pooled_grid) if is_cpu else gelu_pool(to_pool, pooled_grid)
                )
                normed, mean, rstd = torch.native_layer_norm(pooled, norm_weight.shape, norm_weight, norm_bias, eps)
            pooled_key_value = F.linear(
                normed, weight.narrow(0, channels, 2 * channels), bias.narrow(0, channels, 2 * channels)
            )
            pooled_key_value = pooled_key_value.view(*pooled.shape[:3], 2, heads, -1)
            inputs = query, projected.narrow(3, 1, 2), pooled_key_value, *of_attention
            output, logsumexp, rounding = OPERATORS.cosine_attention.default(*inputs, ctx is not None)
        if ctx is not None:
            of_pool = to_pool, pooled, mean, rstd, norm_weight, norm_bias, normed
            ctx.save_for_backward(x, weight, *of_pool, *inputs, output, logsumexp, rounding)
            ctx.pools_with_norm = pools_with_norm
        return output.view(*grid, -1)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND_DERIVATIVE)
        x, weight, *saved = ctx.saved_tensors
        to_pool, pooled, mean, rstd, norm_weight, norm_bias, normed, *attention = saved
        channels = x.shape[1]
        with torch._C._ExcludeDispatchKeyGuard(BELOW_AUTOGRAD):
            of_attention = OPERATORS.cosine_attention_backward.default(grad.reshape(attention[0].shape), *attention)
            of_query, of_key_value, of_pooled, of_scale, of_embedding, of_window, of_table, *of_tokens = of_attention
            # Tokens have one axis, as matrix products take them.
            of_query, of_key_value = of_query.view(x.shape), of_key_value.view(x.shape[0], -1)
            of_pooled = of_pooled.flatten(0, 2).flatten(1)
            of_normed = (of_pooled @ weight.narrow(0, channels, 2 * channels)).view(normed.shape)
            if ctx.pools_with_norm:
                of_pool, of_norm_weight, of_norm_bias = OPERATORS.gelu_pool_norm_backward.default(
                    of_normed, to_pool, pooled, mean, rstd, norm_weight
                )
            else:
                of_normed, of_norm_weight, of_norm_bias = torch.ops.aten.native_layer_norm_backward.default(
                    of_normed, pooled, norm_weight.shape, mean, rstd, norm_weight, norm_bias, (True, True, True)
                )
                of_pool = OPERATORS.gelu_pool_backward.default(of_normed, to_pool)
            of_projected = torch.cat((of_query, of_key_value, of_pool.flatten(0, 2)), 1)
            of_x, of_weight, of_bias = of_projected @ weight, of_projected.T @ x, of_projected.sum(0)
            of_weight.narrow(0, channels, 2 * channels).addmm_(of_pooled.T, normed.flatten(0, 2))
            of_bias.narrow(0, channels, 2 * channels).add_(of_pooled.sum(0))
        of_attention = of_scale, of_embedding, of_window, of_table, None, None, *of_tokens
        return of_x.view(grad.shape), of_weight, of_bias, of_norm_weight, of_norm_bias, *of_attention, None, None


class AfterAttention(torch.autograd.Function):
    """The rest of a block: last layer of the attention, residual, norm, ConvGLU, residual, and the next norm."""

    @staticmethod
    def forward(ctx: FunctionCtx | None, x: Tensor, attended: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
        """The block's tokens and their next norm, (B, H, W, C); `ctx` is None where there will be no backward pass.

        `x` are the tokens that the block takes; `attended` has their dtype or less precision. The arguments are
        weights and biases of `proj`, `norm2`, `fc1`, `dwconv`, `fc2` and the next norm, the factors of an image's
        two branches, (B,), None for 1, eps of the norms, and whether the operator `add_norm` is compiled for the
        tokens. Linear layers have the dtype of `attended`; the bias of `fc1`, the convolution and the factors are
        float32 or float64; norms have the dtype of `x`, on the CPU full precision.
        """
        *first, fc1_weight, fc1_bias, conv_weight, conv_bias = arguments[:8]
        *second, attention_factor, mlp_factor, eps, is_one_kernel = arguments[8:]
        with torch._C._ExcludeDispatchKeyGuard(BELOW_AUTOGRAD):
            total, normed, *first = _project_add_norm(x, attended, *first, attention_factor, eps, is_one_kernel)
            normed = normed if normed.dtype == attended.dtype else normed.to(attended.dtype)
            to_gate = F.linear(normed, fc1_weight)
            gated = OPERATORS.gated_convolution.default(to_gate, fc1_bias, conv_weight, conv_bias)
            output, next_normed, *second = _project_add_norm(total, gated, *second, mlp_factor, eps, is_one_kernel)
        if ctx is not None:
            of_gate = to_gate, fc1_bias, conv_weight, conv_bias
            ctx.save_for_backward(normed, fc1_weight, *of_gate, *first, *second)
            ctx.is_one_kernel = is_one_kernel
            ctx.set_materialize_grads(False)
        return output, next_normed

    @staticmethod
    def backward(ctx: FunctionCtx, of_output: Tensor | None, of_next: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND_DERIVATIVE)
        normed, fc1_weight, *saved = ctx.saved_tensors
        of_gate, first, second = saved[:4], saved[4:12], saved[12:]
        with torch._C._ExcludeDispatchKeyGuard(BELOW_AUTOGRAD):
            of_total, of_gated, *of_second = _project_add_norm_backward(
                of_output, of_next, *second, ctx.is_one_kernel
            )
            of_to_gate, *of_convolution = OPERATORS.gated_convolution_backward.default(of_gated, *of_gate)
            of_normed = of_to_gate @ fc1_weight
            of_normed = of_normed if of_normed.dtype == of_total.dtype else of_normed.to(of_total.dtype)
            of_fc1_weight = of_to_gate.flatten(0, 2).T @ normed.flatten(0, 2)
            of_first = _project_add_norm_backward(of_total, of_normed, *first, ctx.is_one_kernel)
        return *of_first, of_fc1_weight, *of_convolution, *of_second, None, None, None, None


def _project_add_norm(x: Tensor, branch: Tensor, *arguments: object) -> tuple[Tensor, ...]:
    """`sum = x + factor * linear(branch)`, its LayerNorm, and what `_project_add_norm_backward` takes of them."""
    weight, bias, norm_weight, norm_bias, factor, eps, is_one_kernel = arguments
    if is_one_kernel:
        added = F.linear(branch, weight)
        output, total, mean, rstd = OPERATORS.add_norm.default(x, added, bias, factor, norm_weight, norm_bias, eps)
    else:
        added = F.linear(branch, weight, bias)
        added = added if factor is None else added.mul_(factor.to(added.dtype)[:, None, None, None])
        total = added.add_(x) if added.dtype == x.dtype else x + added
        output, mean, rstd = torch.native_layer_norm(total, norm_weight.shape, norm_weight, norm_bias, eps)
    return total, output, branch, weight, total, mean, rstd, factor, norm_weight, norm_bias


def _project_add_norm_backward(of_sum: Tensor | None, of_norm: Tensor | None, *saved: object) -> tuple[Tensor, ...]:
    """Gradients of the tensors of `_project_add_norm` up to `norm_bias`."""
    branch, weight, total, mean, rstd, factor, norm_weight, norm_bias, is_one_kernel = saved
    of_norm = torch.zeros_like(total) if of_norm is None else of_norm
    if is_one_kernel:
        of_x, of_added, of_bias, *of_norm = OPERATORS.add_norm_backward.default(
            of_norm, of_sum, total, mean, rstd, factor, norm_weight
        )
    else:
        of_x, *of_norm = torch.ops.aten.native_layer_norm_backward.default(
            of_norm, total, norm_weight.shape, mean, rstd, norm_weight, norm_bias, (True, True, True)
        )
        of_x = of_x if of_sum is None else of_x.add_(of_sum)
        of_added = of_x if factor is None else of_x * factor.to(of_x.dtype)[:, None, None, None]
        of_added = of_added if of_added.dtype == branch.dtype else of_added.to(branch.dtype)
        of_bias = of_added.sum((0, 1, 2))
    return of_x, of_added @ weight, of_added.flatten(0, 2).T @ branch.flatten(0, 2), of_bias, *of_norm


def call(function: type[torch.autograd.Function], *arguments: object) -> Tensor | tuple[Tensor, ...]:
    """Call a function of this file, without autograd where it is off. No transform of torch.func may be active."""
    return apply(function, *arguments) if torch.is_grad_enabled() else function.forward(None, *arguments)
