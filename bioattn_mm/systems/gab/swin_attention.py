"""GAB for Swin: mmpretrain's layers with a Gaussian in each attention. Importing mmpretrain takes seconds."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import PatchMerging
from mmpretrain.models.utils import ShiftWindowMSA, WindowMSA
from timm.layers import DropPath
from torch import Tensor, nn

from ...ops.constants import cached_constant
from ..common.layout import Grid, head_dims_of
from .gaussian_bias import GaussianBias


class GaussianWindowMSA(WindowMSA):
    """mmpretrain's window attention, its table of relative position biases plus a `GaussianBias`."""

    def __init__(self, *, sigma: float, amplitude: float = 1.0, **kwargs) -> None:
        head_dims_of(kwargs['embed_dims'], kwargs['num_heads'])
        super().__init__(**kwargs)
        self.gaussian = GaussianBias(sigma, amplitude)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B * windows, N, C) to the same; `mask`, (windows, N, N), separates the parts of shifted windows."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        bias = self.table().flatten(1)[None, :, self.relative_position_index]
        if mask is not None:
            bias = (bias + mask[:, None]).repeat(x.shape[0] // mask.shape[0], 1, 1, 1)
        output = F.scaled_dot_product_attention(query, key, value, bias.to(query.dtype))
        return self.proj(output.transpose(1, 2).flatten(2))

    def table(self) -> Tensor:
        """Sum of both biases for all offsets in the window: (heads, 2 H - 1, 2 W - 1)."""
        height, width = self.window_size
        learned = self.relative_position_bias_table.T.unflatten(1, (2 * height - 1, 2 * width - 1))
        return learned + self.gaussian.table(self.window_size)

    def head_parameters(self) -> dict[str, list[float]]:
        """Those of the Gaussian, see `GaussianBias`."""
        return self.gaussian.head_parameters()


class GaussianWindows(ShiftWindowMSA):
    """mmpretrain's shifted windows, whose mask is computed once for a size."""

    @staticmethod
    def get_attn_mask(hw_shape: Grid, window_size: int, shift_size: int, device: torch.device) -> Tensor | None:
        return _shift_mask(hw_shape, window_size, shift_size, device) if shift_size else None


_shift_mask = cached_constant(ShiftWindowMSA.get_attn_mask)


class Block(nn.Module):
    """mmpretrain's `SwinBlock` without the layers in it that do nothing: they make 40 % of its Python calls."""

    def __init__(self, embed_dims: int, drop_path: float, **attention) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims)
        no_drop_path = dict(type='DropPath', drop_prob=0.0)
        self.attn = GaussianWindows(embed_dims, window_msa=GaussianWindowMSA, dropout_layer=no_drop_path, **attention)
        self.norm2 = nn.LayerNorm(embed_dims)
        hidden = nn.Sequential(nn.Linear(embed_dims, 4 * embed_dims), nn.GELU())
        layers = nn.Sequential(hidden, nn.Linear(4 * embed_dims, embed_dims))
        self.ffn = nn.Sequential(OrderedDict(layers=layers))
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens of a grid (H, W), (B, H * W, C), to the same shape."""
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.ffn(self.norm2(x)))


class Stage(nn.Module):
    """Blocks, of which every second has shifted windows, and mmpretrain's patch merging, if there is a next stage."""

    def __init__(
        self, embed_dims: int, drop_paths: Sequence[float], window_size: int, downsample: bool, **attention
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(embed_dims, rate, window_size=window_size, shift_size=index % 2 * (window_size // 2), **attention)
            for index, rate in enumerate(drop_paths)
        )
        self.downsample = PatchMerging(embed_dims, 2 * embed_dims) if downsample else None
