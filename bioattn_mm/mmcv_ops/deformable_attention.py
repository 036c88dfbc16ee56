"""Multi-scale deformable attention as mmcv calls it: `bioattn_mm.ops.deformable_attention`."""

import torch
from torch import Tensor

from ..ops import deformable_attention


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int,
) -> Tensor:
    """`deformable_attention`, (B, Q, heads * d); starts follow from the shapes, the step is of mmcv's kernel."""
    return deformable_attention(value, spatial_shapes, sampling_loc, attn_weight).flatten(2)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Gradients of `ms_deform_attn_forward`, written to the three tensors of their shapes."""
    value, sampling_loc, attn_weight = leaves = [
        tensor.detach().requires_grad_() for tensor in (value, sampling_loc, attn_weight)
    ]
    with torch.enable_grad():
        output = deformable_attention(value, spatial_shapes, sampling_loc, attn_weight).flatten(2)
    found = torch.autograd.grad(output, leaves, grad_output)
    for target, gradient in zip((grad_value, grad_sampling_loc, grad_attn_weight), found, strict=True):
        target.copy_(gradient)
