"""PerViT: Peripheral Vision Transformer (Min et al., NeurIPS 2022)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from ...checkpoints import Release
from ...errors import InputError
from ...layers import DistanceEmbedding, PeripheralAttention
from ...layers.arguments import head_dims_of
from ...layers.building import build_layer, one_for_each
from ...layers.peripheral_attention import PRETRAIN_GRID
from ...registry import MODELS
from .base import PlainBackbone
from .blocks import init_linear, pad_to_patches

STRIDE = 16
MLP_RATIO = 4


@MODELS.register_module()
class ConvStem(nn.Sequential):
    """PerViT's stem of stride 16: four convolutions of stride 2 with BatchNorm and ReLU, then one of 1 x 1.

    Args:
        embed_dims: Channels of the last two convolutions.
        stem_channels: Channels of the first three.
        in_channels: Channels of the images.
    """

    def __init__(self, embed_dims: int, stem_channels: Sequence[int], in_channels: int = 3) -> None:
        channels = (in_channels, *stem_channels, embed_dims)
        layers = [
            nn.Sequential(
                nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
            )
            for before, after in zip(channels, channels[1:])
        ]
        super().__init__(*layers, nn.Conv2d(embed_dims, embed_dims, 1))


@MODELS.register_module()
class PatchStem(nn.Conv2d):
    """One linear map of each patch of 16 x 16 pixels, as in DeiT: no convolutional stem (PerViT, table 1).

    Args:
        embed_dims: Channels of the output.
        in_channels: Channels of the images.
    """

    def __init__(self, embed_dims: int, in_channels: int = 3) -> None:
        super().__init__(in_channels, embed_dims, STRIDE, stride=STRIDE)


@MODELS.register_module()
class ConditionalPosition(nn.Conv2d):
    """Conditional position encoding: a depth-wise 3 x 3 convolution, whose zero padding tells positions.

    Args:
        embed_dims: Width of the tokens.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@MODELS.register_module()
class NoConditionalPosition(nn.Identity):
    """Tokens as they are: PerViT without conditional position encoding (PerViT, table 1)."""


class PerViTBlock(nn.Module):
    """`x + DropPath(attn(LN(conv(x))))`, then `shortcut(x) + DropPath(mlp(LN(x)))`, which may change the width.

    Args:
        in_channels: Input channels.
        out_channels: Output channels; the shortcut is the identity where they equal the input's.
        position_conv: Conditional position encoding.
        attn: Attention; takes tokens and the embedding of distances.
        drop_path: Probability to leave a branch out in training.
    """

    def __init__(
        self, in_channels: int, out_channels: int, position_conv: nn.Module, attn: nn.Module, drop_path: float
    ) -> None:
        super().__init__()
        self.position_conv = position_conv
        self.norm1 = nn.LayerNorm(in_channels, eps=1e-6)
        self.attn = attn
        self.norm2 = nn.LayerNorm(in_channels, eps=1e-6)
        self.mlp = Mlp(in_channels, MLP_RATIO * in_channels, out_channels)
        self.shortcut = nn.Identity() if in_channels == out_channels else nn.Linear(in_channels, out_channels)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, distance_embedding: DistanceEmbedding) -> Tensor:
        """(B, H, W, C) to (B, H, W, C')."""
        x = x + self.drop_path(self.attn(self.norm1(self.position_conv(x)), distance_embedding))
        return self.shortcut(x) + self.drop_path(self.mlp(self.norm2(x)))


@MODELS.register_module()
class PerViT(PlainBackbone):
    """Plain backbone of stride 16 with multi-head peripheral attention; its width grows three times.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, and distances between
    tokens keep the unit of the pre-training.

    Args:
        arch: 'tiny', 'small' or 'medium', or a dict with `embed_dims` (four widths), `depths` (blocks of each
            width), `stem_channels` (of the first three convolutions) and `num_heads`.
        out_indices: Blocks (counted from 0) whose outputs are returned; the final LayerNorm is applied to the last
            block's alone. Blocks after the last of these are not built.
        position_init: How the position-based attention starts (PerViT, table 5): 'peripheral' from local in the first
            block to global in the last, 'conv' local in every block, like the first of 'peripheral', 'random' with
            random values of all its parameters.
        out_type: 'featmap' for maps, (B, C, H, W), or, for a classifier, 'avg_featmap' for the mean of their tokens,
            (B, C).
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        cache_mebibytes: Memory for the position-based attention of sizes met before, in eval mode, all blocks
            together, where PyTorch computes it: on a GPU, or without the compiled operators. A size takes 4 * blocks
            * heads * tokens^2 bytes (half of it in half precision), 3 GiB for 'tiny' at 1024 x 1024 pixels; one that
            does not fit is computed anew every time.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        frozen_stages: Blocks up to and including this one are frozen, and the stem and the distance embedding with
            them; -1 freezes none.
        token_mixers: What varies in the attention of the blocks, for ablations: arguments of `PeripheralAttention`,
            such as `dict(position=dict(type='bioattn_mm.VariedPosition'))`, or, with a `type`, another layer; a
            dict for all blocks, or one for each. This and the next four are layers by name: `type`, and arguments of
            theirs. None for the paper's.
        distance_embedding: R, which the attention of all blocks shares; by default `DistanceEmbedding`.
        stem: From images to the first tokens, of stride 16; by default `ConvStem`.
        position_conv: Conditional position encoding (CPE) of each block; by default `ConditionalPosition`.
        pos_embed: Absolute position embedding of the first tokens; by default none.
            `dict(type='bioattn_mm.PositionEmbedding')` is DeiT's, for a pre-training at 224 x 224 pixels.
        in_channels: Channels of the images; weights for three are converted as timm does, see `Backbone`.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release as it is.

    Attributes:
        out_channels: Channels of each output.
    """

    arch_settings = {
        'tiny': dict(embed_dims=(128, 192, 224, 280), depths=(2, 2, 6, 2), stem_channels=(48, 64, 96), num_heads=4),
        'small': dict(
            embed_dims=(272, 320, 368, 464), depths=(2, 2, 6, 2), stem_channels=(64, 128, 192), num_heads=8
        ),
        'medium': dict(
            embed_dims=(312, 468, 540, 684), depths=(2, 2, 6, 2), stem_channels=(64, 192, 256), num_heads=12
        ),
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
        self.stage_channels, self.stage_strides = tuple(widths[1:]), (STRIDE,) * self.num_layers
        self.out_channels = tuple(self.stage_channels[index] for index in self.out_indices)

        first = dict(
            embed_dims=widths[0],
            stem_channels=settings['stem_channels'],
            grid=PRETRAIN_GRID,
            in_channels=in_channels,
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

    def run_block(self, block: nn.Module, x: Tensor) -> Tensor:
        return super().run_block(partial(block, distance_embedding=self.distance_embedding), x)

    def embedding_modules(self) -> list[nn.Module]:
        return [self.stem, self.pos_embed, self.distance_embedding]

    @classmethod
    def parse_arch(cls, arch: str | dict) -> dict:
        settings = super().parse_arch(arch)
        for embed_dims in settings['embed_dims']:
            head_dims_of(embed_dims, settings['num_heads'])
        return settings

    def _init_position(self, position_init: str) -> None:
        """Initial values of the position-based attention of the blocks that have one: PerViT, eq. 9 and table 5."""
        if position_init not in ('peripheral', 'conv', 'random'):
            raise InputError(f"position_init must be 'peripheral', 'conv' or 'random', got {position_init!r}")
        depth = np.linspace(0, position_init == 'peripheral', self.num_layers).tolist()
        positions = [(b.attn.position, share) for b, share in zip(self.blocks, depth) if hasattr(b.attn, 'position')]
        if not positions:
            return
        if position_init == 'random':
            self.distance_embedding.init_randomly()
            for position, _ in positions:
                position.init_randomly()
            return
        self.distance_embedding.init_as_decreasing()
        for position, share in positions:
            position.init_as_local(norm_weight=3 + (0.01 - 3) * share, norm_bias=-5 + (4 + 5) * share)
