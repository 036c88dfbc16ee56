"""Aggregated attention for graphs that other runtimes take, with as few passes over the weights as they allow."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import AggregatedAttentionInputs
from .windows import outside_of_windows, pad_for_windows, window_products, window_size_of, window_sums


def portable_aggregated_attention(inputs: AggregatedAttentionInputs) -> Tensor:
    """`bioattn_mm.ops.aggregated_attention` of checked arguments, at sizes that may be symbols.

    Runtimes fuse no attention with two kinds of keys, so that every step reads and writes the weights of all pairs. A
    product gives the logits of both kinds in one tensor, where two products would be copied into one: the logits of
    the window, of which there are few, are computed before it, stand beside the query, and an identity matrix beside
    the pooled keys passes them on. For the same reason the weights are not split afterwards: values of zero stand
    beside the pooled ones. Where the size is fixed, the bias, which has the mask of the window in it, is a constant.
    """
    batch, height, width, heads, channels = inputs.query.shape
    window_size = window_size_of(inputs.window_bias.shape[1])
    offsets = window_size**2

    logits = window_products(inputs.query, pad_for_windows(inputs.key, window_size), window_size)
    query = torch.cat([logits, inputs.query], dim=-1).permute(0, 3, 1, 2, 4).flatten(2, 3)  # (B, heads, N, k * k + d)
    pooled_key = inputs.pooled_key.flatten(1, 2).permute(0, 2, 3, 1)  # (B, heads, d, P)
    identity = torch.eye(offsets, dtype=query.dtype, device=query.device)
    key = F.pad(pooled_key, (offsets, 0, offsets, 0)) + F.pad(identity, (0, pooled_key.shape[3], 0, channels))
    pooled_value = F.pad(inputs.pooled_value.flatten(1, 2).transpose(1, 2), (0, 0, offsets, 0))

    weights = (query @ key + _bias(inputs, window_size)).softmax(dim=-1)
    output = (weights @ pooled_value).unflatten(2, (height, width)).permute(0, 2, 3, 1, 4)
    window_weights = weights[..., :offsets].unflatten(2, (height, width)).permute(0, 2, 3, 1, 4)
    values = pad_for_windows(inputs.value, window_size)
    return output + window_sums(window_weights + inputs.token_weights, values, window_size)


def _bias(inputs: AggregatedAttentionInputs, window_size: int) -> Tensor:
    """Bias of the window's keys, -inf outside of the image, and of the pooled ones: (heads, N, k * k + P)."""
    outside = outside_of_windows(inputs.query, window_size).squeeze(2)
    window = inputs.window_bias[:, None, None].masked_fill(outside, float('-inf')).flatten(1, 2)
    pooled = inputs.pooled_bias.index_select(1, inputs.pooled_bias_rows.flatten())
    pooled = pooled.unflatten(1, inputs.pooled_bias_rows.shape).transpose(2, 3)  # (heads, H, W, Ph, Pw)
    return torch.cat([window, pooled.flatten(3).flatten(1, 2)], dim=-1)
