"""The LayerNorm of the backbones."""

from torch import Tensor, nn

from ..ops import layer_norm


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` of the last axis, with weight and bias, faster for bfloat16 on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        return layer_norm(x, self.weight, self.bias, self.eps)
