"""The linear layer of TransNeXt."""

from torch import Tensor, nn

from ..ops import linear


class Linear(nn.Linear):
    """`nn.Linear`, faster in training with autocast to bfloat16 on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)
