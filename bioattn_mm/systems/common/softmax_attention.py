"""Multi-head self-attention, which several papers compare with."""

import torch.nn.functional as F
from torch import Tensor, nn

from ...registry import MODELS
from .attention_maps import AttentionMap, AttentionMaps
from .layout import head_dims_of, merge_heads, split_heads


@MODELS.register_module()
class SoftmaxAttention(nn.Module):
    """Multi-head self-attention.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        qkv_bias: Biases of queries, keys and values.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        return self.proj(merge_heads(F.scaled_dot_product_attention(query, key, value), x.shape))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention'."""
        query, key, _ = split_heads(self.qkv(x), 3, self.num_heads)
        weights = (query[:, :, queries] @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))
