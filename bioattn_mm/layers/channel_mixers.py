"""The channel mixers that TransNeXt compares ConvGLU with (figure 4, tables 2 and 7).

The hidden width is `ratio * embed_dims`, with the gated ones, as with ConvGLU, 2/3 of it, because they project to
twice their hidden width: all have about as many parameters.
"""

import torch.nn.functional as F
from timm.layers import Mlp, SqueezeExcite
from torch import Tensor, nn

from ..errors import InputError
from ..registry import MODELS
from .conv_glu import ConvGLU


@MODELS.register_module()
class MLP(Mlp):
    """The feed-forward network of ViT: `fc2(GELU(fc1(x)))`.

    Source: ViT (Dosovitskiy et al., ICLR 2021).

    Args:
        embed_dims: Width of the tokens.
        ratio: Hidden width in units of `embed_dims`.
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__(embed_dims, int(embed_dims * ratio))


@MODELS.register_module()
class DepthwiseMLP(nn.Module):
    """The convolutional feed-forward network (ConvFFN) of PVTv2: `fc2(GELU(DWConv3x3(fc1(x))))`.

    Source: TransNeXt (Shi, CVPR 2024), table 2, steps 1 to 3.

    Args:
        embed_dims: Width of the tokens.
        ratio: Hidden width in units of `embed_dims`.
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__()
        hidden_dims = int(embed_dims * ratio)
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.dwconv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.fc2(F.gelu(self.dwconv(self.fc1(x).permute(0, 3, 1, 2))).permute(0, 2, 3, 1))


@MODELS.register_module()
class SEMLP(MLP):
    """An MLP whose output channels are weighted by squeeze and excitation: one weight for a whole image.

    Source: TransNeXt (Shi, CVPR 2024), figure 4 (b), after FAN (Zhou et al., ICML 2022): the attention to channels
    that ConvGLU gives every token its own of. No table has it. The bottleneck, a sixteenth, and its ReLU are those of
    Hu et al. (CVPR 2018).

    Args:
        embed_dims: Width of the tokens.
        ratio: Hidden width in units of `embed_dims`.
        se_ratio: Width of the bottleneck in units of `embed_dims`.
    """

    def __init__(self, embed_dims: int, ratio: float, se_ratio: float = 1 / 16) -> None:
        super().__init__(embed_dims, ratio)
        self.channel_attention = SqueezeExcite(embed_dims, rd_channels=max(1, round(embed_dims * se_ratio)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.channel_attention(super().forward(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@MODELS.register_module()
class GLU(nn.Module):
    """Gated linear unit: `fc2(GELU(a) * b)` with `a, b = chunk(fc1(x))`; ConvGLU without its convolution.

    Source: TransNeXt (Shi, CVPR 2024), table 2, step 4, and figure 4; GLU is of Dauphin et al. (ICML 2017).

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


@MODELS.register_module()
class OtherConvGLU(ConvGLU):
    """ConvGLU with its convolution elsewhere, of the same parameters: `fc2` of, with `a, b = chunk(fc1(x))`,

    1. `DWConv3x3(GELU(a)) * b`, after the activation of the gate,
    2. `GELU(a) * DWConv3x3(b)`, in the branch of the values,
    3. `DWConv3x3(GELU(a) * b)`, after both.

    Source: TransNeXt (Shi, CVPR 2024), eq. 20 to 22 and table 7, type 1 to 3.

    Args:
        embed_dims: As in `ConvGLU`.
        ratio: As in `ConvGLU`.
        design: 1, 2 or 3.

    Raises:
        InputError: `design` is another.
    """

    def __init__(self, embed_dims: int, ratio: float, design: int) -> None:
        super().__init__(embed_dims, ratio)
        if design not in (1, 2, 3):
            raise InputError(f'design must be 1, 2 or 3, got {design!r}')
        self.design = design

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        gate, value = self.fc1(x).permute(0, 3, 1, 2).chunk(2, dim=1)
        if self.design == 1:
            x = self.dwconv(F.gelu(gate)) * value
        elif self.design == 2:
            x = F.gelu(gate) * self.dwconv(value)
        else:
            x = self.dwconv(F.gelu(gate) * value)
        return self.fc2(x.permute(0, 2, 3, 1))
