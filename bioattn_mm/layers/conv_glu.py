"""Convolutional gated linear unit."""

import torch.nn.functional as F
from torch import Tensor, nn


class ConvGLU(nn.Module):
    """Channel mixer whose gate sees the 3 x 3 neighbourhood: `fc2(GELU(DWConv3x3(a)) * b)`, `a, b = chunk(fc1(x))`.

    Source: TransNeXt (Shi, CVPR 2024), section 3.4.

    Args:
        channels: Input and output channels.
        ratio: Expansion of a plain MLP of the same cost; the gated one is 2/3 as wide, `int(2 / 3 * ratio * C)`.
    """

    def __init__(self, channels: int, ratio: float) -> None:
        super().__init__()
        hidden_channels = int(2 * int(channels * ratio) / 3)
        self.fc1 = nn.Linear(channels, 2 * hidden_channels)
        self.dwconv = nn.Conv2d(hidden_channels, hidden_channels, 3, padding=1, groups=hidden_channels)
        self.fc2 = nn.Linear(hidden_channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        gate, features = self.fc1(x).chunk(2, dim=-1)
        gate = self.dwconv(gate.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.fc2(F.gelu(gate) * features)
