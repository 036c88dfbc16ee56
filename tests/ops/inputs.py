"""Tensors of the operators that more than one file of tests takes; the others are of `bioattn_mm.ops.samples`."""

import torch
from torch import Tensor

from bioattn_mm.ops import CosineAttentionInputs
from bioattn_mm.ops.arguments import AggregatedAttentionInputs
from bioattn_mm.ops.samples import OPERATORS


def aggregated_attention_inputs(
    rows: int = 4, dtype: torch.dtype = torch.float64, **sizes: object
) -> AggregatedAttentionInputs:
    """Pairs of a query row and a pooled row have one of so many rows of the position bias, drawn at random."""
    inputs = AggregatedAttentionInputs(*OPERATORS['aggregated_attention'].inputs(sizes, 'cpu', dtype))
    heads, _, width, pooled_width = inputs.pooled_bias.shape
    return inputs._replace(
        pooled_bias=torch.randn(heads, rows, width, pooled_width).to(dtype),
        pooled_bias_rows=torch.randint(rows, inputs.pooled_bias_rows.shape),
    )


def cosine_attention_inputs(
    consecutive: bool = False, dtype: torch.dtype = torch.float64, **sizes: object
) -> CosineAttentionInputs:
    """Rows and columns of the position bias are random; `consecutive`: the next query has the next column."""
    inputs = CosineAttentionInputs(*OPERATORS['cosine_attention'].inputs(sizes, 'cpu', dtype))
    heads, (width, pooled_width) = len(inputs.scale), inputs.pooled_bias_columns.shape
    rows, columns = 4, width + 6
    starts = torch.randint(columns - width + 1, (pooled_width,))
    return inputs._replace(
        pooled_bias=torch.randn(heads, rows, columns).to(inputs.scale.dtype),
        pooled_bias_rows=torch.randint(rows, inputs.pooled_bias_rows.shape),
        pooled_bias_columns=torch.arange(width)[:, None] + starts
        if consecutive
        else torch.randint(columns, (width, pooled_width)),
    )


RANDOM = dict(aggregated_attention=aggregated_attention_inputs, cosine_attention=cosine_attention_inputs)


def to_double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
