"""The channel mixers that TransNeXt compares ConvGLU with (section 3.2, table 7).

The hidden width is `ratio * embed_dims`, with `GLU`, as with ConvGLU, 2/3 of it, because they project to twice their
hidden width: all have about as many parameters.
"""

import torch.nn.functional as F
from timm.layers import Mlp, SqueezeExcite
from torch import Tensor, nn

from ..registry import MODELS


@MODELS.register_module()
class MLP(Mlp):
    """The feed-forward network of ViT: `fc2(GELU(fc1(x)))`.

    Source: TransNeXt (Shi, CVPR 2024), table 7, MLP.

    Args:
        embed_dims: Width of the tokens.
        ratio: Hidden width in units of `embed_dims`.
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__(embed_dims, int(embed_dims * ratio))


@MODELS.register_module()
class DepthwiseMLP(nn.Module):
    """An MLP with a depth-wise convolution, as in PVTv2: `fc2(GELU(DWConv3x3(fc1(x))))`.

    Source: TransNeXt (Shi, CVPR 2024), table 7, depth-wise MLP.

    Args:
        embed_dims: Width of the tokens.
        ratio: Hidden width in units of `embed_dims`.
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__()
        hidden_dims = int(embed_dims * ratio)
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.dwconv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.channel_attention = nn.Identity()
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        x = F.gelu(self.dwconv(self.fc1(x).permute(0, 3, 1, 2)))
        return self.fc2(self.channel_attention(x).permute(0, 2, 3, 1))


@MODELS.register_module()
class SEMLP(DepthwiseMLP):
    """A depth-wise MLP whose hidden channels are weighted by squeeze and excitation: one weight for a whole image.

    Source: TransNeXt (Shi, CVPR 2024), table 7, SE: the attention to channels that ConvGLU gives every token its own
    of. Where it stands is chosen here: before the second linear layer, with the bottleneck of a sixteenth and the
    ReLU of Hu et al. (CVPR 2018).

    Args:
        embed_dims: Width of the tokens.
        ratio: Hidden width in units of `embed_dims`.
        se_ratio: Width of the bottleneck in units of the hidden width.
    """

    def __init__(self, embed_dims: int, ratio: float, se_ratio: float = 1 / 16) -> None:
        super().__init__(embed_dims, ratio)
        hidden_dims = self.fc1.out_features
        self.channel_attention = SqueezeExcite(hidden_dims, rd_channels=max(1, round(hidden_dims * se_ratio)))


@MODELS.register_module()
class GLU(nn.Module):
    """Gated linear unit: `fc2(GELU(a) * b)` with `a, b = chunk(fc1(x))`; ConvGLU without its convolution.

    Source: TransNeXt (Shi, CVPR 2024), table 7, GLU (Shazeer, 2020).

    Args:
        embed_dims: Width of the tokens.
        ratio: Expansion ratio of an MLP of the same cost; the gated network is 2/3 as wide.
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__()
        hidden_dims = int(2 * int(embed_dims * ratio) / 3)
        self.fc1 = nn.Linear(embed_dims, 2 * hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.gelu(gate) * value)
