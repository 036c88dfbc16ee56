"""PerViT: Peripheral Vision Transformer (Min et al., NeurIPS 2022)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat

import numpy as np
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ...checkpoints import Release
from ...errors import InputError
from ...ops.backends import choose_backend
from ...registry import MODELS
from ..common.backbone import PlainBackbone
from ..common.blocks import FeedForward, init_linear, pad_to_patches, through
from ..common.building import build_layer, one_for_each
from ..common.size_cache import SizeCache
from .attention import PRETRAIN_GRID, DistanceEmbedding, PeripheralAttention, hidden_planes

STRIDE = 16
MLP_RATIO = 4


@MODELS.register_module()
class ConvStem(nn.Sequential):
    """PerViT's stem of stride 16: four convolutions of stride 2 with BatchNorm and ReLU, then one of 1 x 1.

    `stem_channels` are those of the first three.
    """

    def __init__(self, embed_dims: int, stem_channels: Sequence[int], in_channels: int = 3) -> None:
        channels = (in_channels, *stem_channels, embed_dims)
        convs = (nn.Conv2d(*pair, 3, stride=2, padding=1) for pair in pairwise(channels))
        layers = (nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)) for conv in convs)
        super().__init__(*layers, nn.Conv2d(embed_dims, embed_dims, 1))


@MODELS.register_module()
class PatchStem(nn.Conv2d):
    """One linear map of each patch of 16 x 16 pixels, as in DeiT: no convolutional stem (PerViT, table 1)."""

    def __init__(self, embed_dims: int, in_channels: int = 3) -> None:
        super().__init__(in_channels, embed_dims, STRIDE, stride=STRIDE)


@MODELS.register_module()
class ConditionalPosition(nn.Conv2d):
    """Conditional position encoding: a depth-wise 3 x 3 convolution, whose zero padding tells positions."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@MODELS.register_module()
class NoConditionalPosition(nn.Identity):
    """Tokens as they are: PerViT without conditional position encoding (PerViT, table 1)."""


class PerViTBlock(nn.Module):
    """`x + DropPath(attn(LN(conv(x))))`, then `shortcut(x) + DropPath(mlp(LN(x)))`, which may change the width."""

    def __init__(
        self, in_channels: int, out_channels: int, position_conv: nn.Module, attn: nn.Module, drop_path: float
    ) -> None:
        super().__init__()
        self.position_conv = position_conv
        self.norm1 = nn.LayerNorm(in_channels, eps=1e-6)
        self.attn = attn
        self.norm2 = nn.LayerNorm(in_channels, eps=1e-6)
        self.mlp = FeedForward(in_channels, MLP_RATIO * in_channels, out_channels)
        self.shortcut = nn.Identity() if in_channels == out_channels else nn.Linear(in_channels, out_channels)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(
        self,
        x: Tensor,
        distance_embedding: DistanceEmbedding,
        distances: Tensor | None,
        hidden: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """(B, H, W, C) to (B, H, W, C')."""
        position = dict(distances=distances) if hidden is None else dict(hidden=hidden)
        tokens = self.norm1(self.position_conv(x))
        x = x + through(self.drop_path, self.attn(tokens, distance_embedding, **position))
        return through(self.shortcut, x) + through(self.drop_path, self.mlp(self.norm2(x)))


@MODELS.register_module()
class PerViT(PlainBackbone):
    """Plain backbone of stride 16 with multi-head peripheral attention; its width grows three times.

    Distances between tokens keep the unit of the pre-training at any input size.

    Args:
        arch: 'tiny', 'small' or 'medium', or a dict with `embed_dims` (four widths), `depths` (blocks of each
            width), `stem_channels` (of the first three convolutions) and `num_heads`.
        out_indices: As in `PlainBackbone`; the final LayerNorm is applied to the last block's output alone.
        position_init: How the position-based attention starts (PerViT, table 5): 'peripheral' from local in the first
            block to global in the last, 'conv' local in every block, 'random' with random values.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        cache_mebibytes: Memory for the position-based attention of sizes met before, in eval mode, all blocks
            together, where PyTorch computes it. A size takes 4 * blocks * heads * tokens^2 bytes (half of it in half
            precision); one that does not fit is computed every time.
        token_mixers: What varies in the attention of the blocks, for ablations: arguments of `PeripheralAttention`,
            or, with a `type`, another layer; a dict for all blocks, or one for each. The next four, too, are layers
            by name, `type` and arguments; None for the paper's.
        distance_embedding: R, which the attention of all blocks shares; by default `DistanceEmbedding`.
        stem: From images to the first tokens, of stride 16; by default `ConvStem`.
        position_conv: Conditional position encoding (CPE) of each block; by default `ConditionalPosition`.
        pos_embed: Absolute position embedding of the first tokens; none by default, in DeiT `PositionEmbedding`.

    The other arguments are those of `PlainBackbone`.
    """

    arch_settings = {
        name: dict(embed_dims=widths, depths=(2, 2, 6, 2), stem_channels=stem_channels, num_heads=num_heads)
        for name, widths, stem_channels, num_heads in (
            ('tiny', (128, 192, 224, 280), (48, 64, 96), 4),
            ('small', (272, 320, 368, 464), (64, 128, 192), 8),
            ('medium', (312, 468, 540, 684), (64, 192, 256), 12),
        )
    }
    release = Release(
        names=(
            (r'^conv_layers\.conv_layers\.', 'stem.'),
            (r'^conv_layers\.conv1x1\.', 'stem.4.'),
            (r'^rpe_proj\.', 'distance_embedding.proj.'),
            (r'\.conv\.proj\.', '.position_conv.'),
            (r'\.attn\.to_qkv\.', '.attn.qkv.'),
            (r'\.attn\.activation\.gn', '.attn.position.norm'),
            (r'\.attn\.activation\.', '.attn.position.'),
            (r'\.res_path\.', '.shortcut.'),
        )
    )

    no_weight_decay = ('pos_embed',)

    def __init__(
        self,
        arch: str | dict = 'tiny',
        out_indices: tuple[int, ...] = (1, 3, 9, 11),
        position_init: str = 'peripheral',
        out_type: str = 'featmap',
        drop_path_rate: float = 0.0,
        cache_mebibytes: int = 4096,
        with_cp: bool = False,
        frozen_stages: int = -1,
        token_mixers: dict | Sequence[dict] | None = None,
        distance_embedding: dict | None = None,
        stem: dict | None = None,
        position_conv: dict | None = None,
        pos_embed: dict | None = None,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        num_heads, depths = settings['num_heads'], settings['depths']
        super().__init__(sum(depths), out_indices, frozen_stages, with_cp, init_cfg, out_type, in_channels)
        # Widths before the first block and after each one.
        widths = np.repeat(settings['embed_dims'], depths).tolist()
        widths.append(widths[-1])
        self.set_stages(widths[1:], (STRIDE,) * self.num_layers)

        first = dict(
            embed_dims=widths[0], stem_channels=settings['stem_channels'], grid=PRETRAIN_GRID, in_channels=in_channels
        )
        self.stem = build_layer(stem or dict(type=ConvStem), **first)
        self.pos_embed = build_layer(pos_embed or dict(type=nn.Identity), **first)
        self.distance_embedding = build_layer(distance_embedding or dict(type=DistanceEmbedding), num_heads=num_heads)
        position_conv = position_conv or dict(type=ConditionalPosition)
        token_mixers = one_for_each('token_mixers', token_mixers or {}, dict, self.num_layers)
        known = dict(num_heads=num_heads, cache_bytes=cache_mebibytes * 2**20 // self.num_layers)
        self.blocks = nn.ModuleList(
            PerViTBlock(
                before,
                after,
                position_conv=build_layer(position_conv, embed_dims=before),
                attn=build_layer({'type': PeripheralAttention, **mixer}, embed_dims=before, **known),
                drop_path=rate,
            )
            for before, after, mixer, rate in zip(
                widths, widths[1:], token_mixers, self.drop_path_rates(drop_path_rate)
            )
        )
        if not any(hasattr(block.attn, 'position') for block in self.blocks):
            # Attention by content alone has no use for distances.
            self.distance_embedding = nn.Identity()
        self.norm = self.final_norm(widths[-1])
        self.blocks.apply(init_linear)
        self._init_position(position_init)
        self.train(self.training)

    def embed(self, x: Tensor) -> Tensor:
        return self.pos_embed(self.stem(pad_to_patches(x, STRIDE)).permute(0, 2, 3, 1))

    def arguments_of_blocks(self, x: Tensor, at_once: bool) -> Iterable[tuple]:
        # Blocks that keep Phi_p ask for R where they lack it, see `PeripheralAttention`.
        is_kept = SizeCache.is_open(self) and choose_backend(x.device, None) != 'cpu'
        distances = None if is_kept else self.distance_embedding(tuple(x.shape[1:3]))
        if self.with_cp or not at_once:
            return repeat((self.distance_embedding, distances))
        return ((self.distance_embedding, distances, hidden) for hidden in hidden_planes(self.blocks, distances))

    @torch.no_grad()
    def _init_position(self, position_init: str) -> None:
        """Initial values of the position-based attention of the blocks that have one: PerViT, eq. 9 and table 5."""
        if position_init not in ('peripheral', 'conv', 'random'):
            raise InputError(f"position_init must be 'peripheral', 'conv' or 'random', got {position_init!r}")
        if position_init != 'random' and isinstance(self.distance_embedding, DistanceEmbedding):
            # R falls with the distance. Its bias has no effect, as the first instance norm subtracts it.
            nn.init.constant_(self.distance_embedding.proj.weight, -0.02)
        for index, block in enumerate(self.blocks):
            layers = list(block.attn.position.modules()) if hasattr(block.attn, 'position') else []
            norms = [layer for layer in layers if isinstance(layer, nn.GroupNorm)]
            if position_init == 'random':
                # The paper does not say how the norms are drawn: here the last one evenly over the ranges of the
                # peripheral initial values, the one before it normally.
                for norm in norms:
                    nn.init.normal_(norm.weight, 1, 0.02)
                    nn.init.normal_(norm.bias, 0, 0.02)
                for norm in norms[-1:]:
                    nn.init.uniform_(norm.weight, 0.01, 3)
                    nn.init.uniform_(norm.bias, -5, 4)
                continue
            for conv in (layer for layer in layers if isinstance(layer, nn.Conv2d)):
                nn.init.constant_(conv.weight, 0.02)
            depth = index / max(1, self.num_layers - 1) if position_init == 'peripheral' else 0
            for norm in norms[-1:]:
                nn.init.constant_(norm.weight, 3 + (0.01 - 3) * depth)  # how strongly Phi_p depends on the distance
                nn.init.constant_(norm.bias, -5 + (4 + 5) * depth)  # its level before the sigmoid
