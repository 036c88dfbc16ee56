"""Convolutional gated linear unit."""

import torch.nn.functional as F
from torch import Tensor, nn

from ...ops import gated_convolution
from ...ops.portable import is_portable
from ...registry import MODELS
from ..common.hooks import is_plain, weight_and_bias


@MODELS.register_module()
class ConvGLU(nn.Module):
    """Feed-forward network with a convolutional gate: `fc2(GELU(DWConv3x3(a)) * b)` with `a, b = chunk(fc1(x))`.

    Source: TransNeXt (Shi, CVPR 2024), section 3.2.

    Args:
        embed_dims: Width of the tokens.
        ratio: Expansion ratio of an MLP of the same cost; the gated network is 2/3 as wide.
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__()
        hidden_dims = int(2 * int(embed_dims * ratio) / 3)
        self.fc1 = nn.Linear(embed_dims, 2 * hidden_dims)
        self.dwconv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        if is_portable():
            return self.as_convolutions(x)
        if is_plain(self.dwconv, nn.Conv2d):
            return self.fc2(gated_convolution(self.fc1(x), *weight_and_bias(self.dwconv)))
        gate, features = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.gelu(self.dwconv(gate.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)) * features)

    def as_convolutions(self, x: Tensor) -> Tensor:
        """The same as `forward`, in convolutions alone: other runtimes then keep one layout from first to last."""
        x, hidden_dims = x.permute(0, 3, 1, 2), self.dwconv.in_channels
        gate, features = (
            F.conv2d(x, self.fc1.weight[half, :, None, None], self.fc1.bias[half])
            for half in (slice(hidden_dims), slice(hidden_dims, None))
        )
        x = F.gelu(self.dwconv(gate)) * features
        return F.conv2d(x, self.fc2.weight[..., None, None], self.fc2.bias).permute(0, 2, 3, 1)
