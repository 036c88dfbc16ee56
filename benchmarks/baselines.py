"""Aggregated attention by other means: an operator for each step, torch.compile, and FlexAttention."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bioattn_mm.ops import AggregatedAttentionInputs, aggregated_attention, sliding_window_av, sliding_window_qk


def unfused_attention(*tensors: Tensor, backend: str | None = None) -> Tensor:
    """`aggregated_attention` in one operator for each step: all weights exist at once."""
    inputs = AggregatedAttentionInputs(*tensors)
    batch, height, width, heads, _ = inputs.query.shape
    offsets = inputs.window_bias.shape[1]
    window_logits = sliding_window_qk(inputs.query, inputs.key, inputs.window_bias, backend=backend)
    # (B, heads, N, d) @ (B, heads, d, P)
    pooled_logits = inputs.query.flatten(1, 2).transpose(1, 2) @ inputs.pooled_key.flatten(1, 2).permute(0, 2, 3, 1)
    bias = inputs.pooled_bias.index_select(1, inputs.pooled_bias_rows.flatten())
    bias = bias.unflatten(1, inputs.pooled_bias_rows.shape)
    pooled_logits = pooled_logits + bias.transpose(2, 3).reshape(heads, height * width, -1)
    window_logits = window_logits.flatten(1, 2).transpose(1, 2)
    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights, pooled_weights = weights.split([offsets, pooled_logits.shape[-1]], dim=-1)
    window_weights = window_weights.transpose(1, 2).unflatten(1, (height, width)) + inputs.token_weights
    pooled_sums = pooled_weights @ inputs.pooled_value.flatten(1, 2).transpose(1, 2)
    pooled_sums = pooled_sums.transpose(1, 2).unflatten(1, (height, width))
    return sliding_window_av(window_weights, inputs.value, backend) + pooled_sums


def compiled_formulas(*_: Tensor) -> Callable[..., Tensor]:
    """`aggregated_attention` by PyTorch's formulas, through torch.compile."""
    return torch.compile(partial(aggregated_attention, backend='reference'), dynamic=False)


def flex_aggregated_attention(*tensors: Tensor, compiled: bool = True) -> Callable[..., Tensor]:
    """`aggregated_attention` of arguments of these sizes by FlexAttention, over window keys and pooled keys in a row.

    The weights that are added after the softmax are beyond FlexAttention: `sliding_window_av` applies them. Without
    `torch.compile` FlexAttention keeps all weights in memory.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # takes seconds

    inputs = AggregatedAttentionInputs(*tensors)
    height, width = inputs.query.shape[1:3]
    pooled_width = inputs.pooled_key.shape[2]
    window_size = round(inputs.window_bias.shape[1] ** 0.5)
    margin, tokens = window_size // 2, height * width

    def offsets(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column of a key in the window of a query."""
        return key // width - query // width + margin, key % width - query % width + margin

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row, column = offsets(query, key)
        return (key >= tokens) | ((row >= 0) & (row < window_size) & (column >= 0) & (column < window_size))

    pooled = inputs.pooled_key.shape[1:3].numel()
    mask = create_block_mask(is_seen, None, None, tokens, tokens + pooled, device=inputs.query.device)
    attend = torch.compile(flex_attention) if compiled else flex_attention

    def heads_first(x: Tensor) -> Tensor:
        """(B, H, W, heads, d) to (B, heads, N, d)."""
        return x.flatten(1, 2).transpose(1, 2)

    def run(*tensors: Tensor) -> Tensor:
        inputs = AggregatedAttentionInputs(*tensors)

        def add_bias(logit: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            row, column = offsets(query, key)
            window_bias = inputs.window_bias[head, (row * window_size + column).clamp(0, window_size**2 - 1)]
            place = (key - tokens).clamp(min=0)
            bias_row = inputs.pooled_bias_rows[query // width, place // pooled_width]
            pooled_bias = inputs.pooled_bias[head, bias_row, query % width, place % pooled_width]
            return logit + torch.where(key < tokens, window_bias, pooled_bias)

        key = torch.cat([heads_first(inputs.key), heads_first(inputs.pooled_key)], dim=2)
        value = torch.cat([heads_first(inputs.value), heads_first(inputs.pooled_value)], dim=2)
        output = attend(heads_first(inputs.query), key, value, add_bias, mask, scale=1.0)
        output = output.transpose(1, 2).unflatten(1, (height, width))
        return output + sliding_window_av(inputs.token_weights, inputs.value)

    return run
