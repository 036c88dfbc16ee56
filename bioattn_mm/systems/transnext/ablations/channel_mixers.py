"""The channel mixers that TransNeXt (Shi, CVPR 2024) compares ConvGLU with (figure 4, tables 2 and 7).

The hidden width is `ratio * embed_dims`; that of the gated ones, as of ConvGLU, 2/3 of it, because they project to
twice their hidden width: all have about as many parameters. `embed_dims` is the width of the tokens.
"""

import torch.nn.functional as F
from timm.layers import GluMlp, Mlp
from torch import Tensor, nn

from ....errors import InputError
from ....registry import MODELS
from ..conv_glu import ConvGLU


@MODELS.register_module()
class MLP(Mlp):
    """The feed-forward network of ViT: `fc2(GELU(fc1(x)))`."""

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__(embed_dims, int(embed_dims * ratio))


@MODELS.register_module()
class DepthwiseMLP(nn.Module):
    """ConvFFN of PVTv2 (TransNeXt, table 2, steps 1 to 3): `fc2(GELU(DWConv3x3(fc1(x))))`."""

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
class GLU(GluMlp):
    """Gated linear unit: `fc2(GELU(a) * b)` with `a, b = chunk(fc1(x))`; ConvGLU without its convolution.

    Source: TransNeXt, table 2, step 4, and figure 4; GLU is of Dauphin et al. (ICML 2017).
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        hidden_dims = int(2 * int(embed_dims * ratio) / 3)
        super().__init__(embed_dims, 2 * hidden_dims, act_layer=nn.GELU, gate_last=False)


@MODELS.register_module()
class OtherConvGLU(ConvGLU):
    """ConvGLU with its convolution elsewhere, of the same parameters: `fc2` of, with `a, b = chunk(fc1(x))`,

    1. `DWConv3x3(GELU(a)) * b`, after the activation of the gate,
    2. `GELU(a) * DWConv3x3(b)`, in the branch of the values,
    3. `DWConv3x3(GELU(a) * b)`, after both.

    Source: TransNeXt, eq. 20 to 22 and table 7, type 1 to 3: `design`. An `InputError` says that there is no other.
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
