"""Feature pyramid for plain backbones, without lateral or top-down connections."""

import math
from collections.abc import Sequence

from mmengine.model import BaseModule
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from ...errors import InputError
from ...registry import MODELS


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Feature maps of several strides from those of one or two: transposed convolutions up, max pooling down.

    Source: Exploring Plain Vision Transformer Backbones for Object Detection (Li et al., ECCV 2022), section 3. There
    every level is computed from the backbone's last feature map (`in_channels` is an int). Segmentation heads on
    plain backbones use feature maps of several depths instead (`in_channels` is a sequence).

    Args:
        in_channels: Channels of the last feature map, or a sequence with those of each.
        out_channels: Channels of every level.
        scales: Size of each level relative to its input: powers of two.
        stride: Stride of the inputs in pixels; a sequence if they differ.
        sources: Index of the input of each level. None: the last feature map, or with a sequence of channels, input i
            for level i.
        head_strides: Strides in pixels that the head expects, to be checked; None checks nothing.
        init_cfg: mmengine's.

    Attributes:
        strides: Strides of the levels in pixels.
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        out_channels: int,
        scales: Sequence[float] = (4, 2, 1, 0.5),
        stride: int | Sequence[int] = 16,
        sources: Sequence[int] | None = None,
        head_strides: Sequence[int] | None = None,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        for scale in scales:
            if scale <= 0 or not math.log2(scale).is_integer():
                raise InputError(f'scales must be powers of two, got {scale}')
        self.from_last = isinstance(in_channels, int)
        channels = [in_channels] if self.from_last else list(in_channels)
        input_strides = [stride] * len(channels) if isinstance(stride, int) else list(stride)
        if len(input_strides) != len(channels):
            raise InputError(f'stride must be an int or have a value for each of in_channels, got {stride}')
        if sources is None:
            sources = [0] * len(scales) if self.from_last else range(len(channels))
        if len(sources) != len(scales):
            raise InputError(
                f'each of the {len(scales)} scales needs one input: in_channels {in_channels}, sources {sources}'
            )
        if set(sources) != set(range(len(channels))):
            raise InputError(f'sources must name all of the {len(channels)} inputs and no others, got {sources}')
        self.sources = tuple(sources)
        self.strides = tuple(round(input_strides[source] / scale) for source, scale in zip(sources, scales))
        if head_strides is not None and tuple(head_strides) != self.strides:
            raise InputError(
                f'the head expects strides {tuple(head_strides)}, the pyramid has {self.strides} '
                f'(inputs of stride {stride}, scales {tuple(scales)})'
            )
        self.levels = nn.ModuleList(
            _level(channels[source], out_channels, scale) for source, scale in zip(sources, scales)
        )

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Maps of the backbone, (B, C_i, H_i, W_i), to (B, out_channels, H_i * scale, W_i * scale), rounded up."""
        if self.from_last:
            inputs = inputs[-1:]
        elif len(inputs) != max(self.sources) + 1:
            raise InputError(f'expected {max(self.sources) + 1} feature maps, as in in_channels, got {len(inputs)}')
        return tuple(level(inputs[source]) for level, source in zip(self.levels, self.sources))


def _level(in_channels: int, out_channels: int, scale: float) -> nn.Sequential:
    """Resample, then project to the channels of the pyramid."""
    layers, channels = [], in_channels
    if scale < 1:
        layers.append(nn.MaxPool2d(round(1 / scale), ceil_mode=True))
    for step in range(max(0, round(math.log2(scale)))):
        if step > 0:
            layers += [LayerNorm2d(channels), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, 2))
        channels //= 2
    return nn.Sequential(
        *layers,
        nn.Conv2d(channels, out_channels, 1, bias=False),
        LayerNorm2d(out_channels),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        LayerNorm2d(out_channels),
    )
