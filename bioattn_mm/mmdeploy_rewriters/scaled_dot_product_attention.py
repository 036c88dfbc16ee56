"""Scaled dot-product attention in elementary operators."""

import torch
from mmdeploy.core import FUNCTION_REWRITER
from mmdeploy.utils import IR
from torch import Tensor

NAME = 'torch.nn.functional.scaled_dot_product_attention'


@FUNCTION_REWRITER.register_rewriter(NAME, ir=IR.ONNX)
@FUNCTION_REWRITER.register_rewriter(NAME, ir=IR.TORCHSCRIPT)
def scaled_dot_product_attention__formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale q k^T + mask) v; mmdeploy's own rewriter divides by `scale` instead of multiplying."""
    if is_causal or enable_gqa:
        raise NotImplementedError('export of scaled_dot_product_attention with is_causal or enable_gqa')
    scale = int(query.shape[-1]) ** -0.5 if scale is None else scale
    logits = (query * scale) @ key.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, float('-inf'))
    elif attn_mask is not None:
        logits = logits + attn_mask
    return logits.softmax(-1) @ value
