"""Convolutional gated linear unit."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import gated_convolution
from ..ops.backends import available_backends
from ..ops.portable import is_portable
from ..ops.whole_layers import is_plain
from ..registry import MODELS
from .arguments import full_precision, weight_and_bias
from .fusing import product_and_bias


@MODELS.register_module()
class ConvGLU(nn.Module):
    """Feed-forward network with a convolutional gate: `fc2(GELU(DWConv3x3(a)) * b)` with `a, b = chunk(fc1(x))`.

    Source: TransNeXt (Shi, CVPR 2024), section 3.2.

    Args:
        embed_dims: Width of the tokens.
        ratio: Expansion ratio of an MLP of the same cost; the gated network is 2/3 as wide.
    """

    # The convolution, and the bias before it, are float32 in the gate's operator.
    cast_at_once = ('fc1.weight', 'fc2')

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
        return self.fc2(self._gate(x))

    def without_last_bias(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same without the bias of its last layer, and that bias."""
        return product_and_bias(self.fc2, self._gate(x))

    def _gate(self, x: Tensor) -> Tensor:
        if not is_plain(self.dwconv, nn.Conv2d):
            gate, features = self.fc1(x).chunk(2, dim=-1)
            return F.gelu(self.dwconv(gate.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)) * features
        convolution = weight_and_bias(self.dwconv)
        # The compiled gate adds the bias of the layer before: on the CPU a product with a bias begins with a pass
        # over its output, and on a GPU the bias has launches of its own, for its dtype and its gradient.
        if not is_plain(self.fc1, nn.Linear) or available_backends(x.device) == ['reference']:
            return gated_convolution(self.fc1(x), *convolution)
        gate_and_features = F.linear(x, self.fc1.weight)
        return gated_convolution(gate_and_features, *convolution, x_bias=full_precision(self.fc1.bias))

    def as_convolutions(self, x: Tensor) -> Tensor:
        """The same as `forward`, in convolutions alone: other runtimes then keep one layout from first to last."""
        x, hidden_dims = x.permute(0, 3, 1, 2), self.dwconv.in_channels
        gate, features = (
            F.conv2d(x, self.fc1.weight[half, :, None, None], self.fc1.bias[half])
            for half in (slice(hidden_dims), slice(hidden_dims, None))
        )
        x = F.gelu(self.dwconv(gate)) * features
        return F.conv2d(x, self.fc2.weight[..., None, None], self.fc2.bias).permute(0, 2, 3, 1)
