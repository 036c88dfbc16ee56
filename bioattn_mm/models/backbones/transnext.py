"""TransNeXt: Robust Foveal Visual Perception for Vision Transformers (Shi, CVPR 2024)."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from timm.layers import to_2tuple, trunc_normal_
from torch import Tensor, nn

from ...checkpoints import Release
from ...errors import InputError
from ...layers import (
    AggregatedAttention,
    ConvGLU,
    LengthScaledAttention,
    LogCPB,
    TrainedLengthQuery,
    build_layer,
    layout,
    one_for_each,
    takes,
)
from ...layers.aggregated_attention import pooled_grid_of
from ...layers.attention_maps import Grid
from ...layers.half_precision import LayerNorm, copied_weights
from ...ops.portable import is_transformed
from ...registry import MODELS
from .base import HierarchicalBackbone
from .blocks import Block, init_linear, run_blocks

STRIDES = (4, 8, 16, 32)
MLP_RATIOS = (8, 8, 4, 4)
BIAS_MODES = ('extrapolate', 'interpolate', 'linear')
# Choices of `TransNeXt.position_bias_settings`: how one trained model is tested at other sizes.
TEST_MODES = (*BIAS_MODES, 'unscaled')


class PatchEmbed(nn.Module):
    """Overlapping patch embedding as in PVTv2: strided convolution and LayerNorm."""

    cast_at_once = ('proj', 'norm')

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, patch_size, stride, padding=patch_size // 2)
        self.norm = LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, H', W', C')."""
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Stage(nn.Module):
    """Patch embedding, blocks, and the LayerNorm of the stage's output."""

    cast_at_once = ('norm',)

    def __init__(self, patch_embed: PatchEmbed, blocks: list[Block], embed_dims: int, with_cp: bool) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(embed_dims, eps=1e-6)
        self.with_cp = with_cp

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H', W'), with the channels last in memory."""
        with copied_weights(self):
            x = run_blocks(self.blocks, self.patch_embed(x), self.norm, self.with_cp)
            return x.permute(0, 3, 1, 2)


@MODELS.register_module()
class TransNeXt(HierarchicalBackbone):
    """Four-stage backbone with aggregated attention, for any input size.

    Args:
        arch: 'micro', 'tiny', 'small', 'base', 'micro-aaaa' (aggregated attention in all four stages), or a dict with
            `embed_dims`, `num_heads` and `depths`, four each. It may have `sr_ratios`, how much smaller each stage's
            pooled grid is than its tokens', where 1 stands for length-scaled attention to all tokens, (8, 4, 2, 1) if
            left out, and `pretrain_size`, 224 if left out.
        bias_mode: Position bias at sizes not trained on: 'extrapolate' computes it for the actual coordinates,
            'interpolate' resizes the bias of `img_size`.
        pretrain_size: Image size of the pre-training, the unit of the relative coordinates: int or (height, width)
            in pixels; None for that of the release, 256 for 'micro-aaaa', else 224.
        img_size: Training image size that 'interpolate' resizes from: int or (height, width) in pixels; None for
            `pretrain_size`, as of a classifier.
        pool_size: Fixed pooled grid of the stages with aggregated attention, int or (height, width): the linear mode.
            None pools to 1/32 of the image, 1/64 with 'micro-aaaa'.
        window_size: Side of the window of aggregated attention in tokens, odd; one for all stages, or four.
        token_mixers: Settings of the attention, to vary it: a dict for all stages, or four. `type` is a class or its
            name in the registry; without it they are settings of the stage's own attention, `AggregatedAttention`, or
            `LengthScaledAttention` where `sr_ratios` has a 1. An attention gets, as far as it has these arguments,
            `embed_dims`, `num_heads`, `position_bias`, `sr_ratio`, `pool_size` and `window_size`.
        channel_mixer: Settings of the feed-forward network, with `type` in the same way, `ConvGLU` by default. It
            gets `embed_dims` and `ratio`.
        position_bias: Settings of the position bias, with `type` in the same way, `LogCPB` by default. It gets
            `num_heads`, `pretrain_grid`, `pretrain_pooled_grid`, `bias_mode`, `train_grid` and `train_pooled_grid`.
        out_indices: Stages (counted from 0) whose outputs are returned. Stages after the last of these are not built.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        frozen_stages: Stages up to and including this one are frozen; -1 freezes none.
        in_channels: Channels of the images; weights for three are converted as timm does, see `Backbone`.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release as it is.

    Attributes:
        out_channels: Channels of each output.
    """

    arch_settings = dict(
        micro=dict(embed_dims=(48, 96, 192, 384), num_heads=(2, 4, 8, 16), depths=(2, 2, 15, 2)),
        tiny=dict(embed_dims=(72, 144, 288, 576), num_heads=(3, 6, 12, 24), depths=(2, 2, 15, 2)),
        small=dict(embed_dims=(72, 144, 288, 576), num_heads=(3, 6, 12, 24), depths=(5, 5, 22, 5)),
        base=dict(embed_dims=(96, 192, 384, 768), num_heads=(4, 8, 16, 32), depths=(5, 5, 23, 5)),
    )
    arch_settings['micro-aaaa'] = dict(**arch_settings['micro'], sr_ratios=(16, 8, 4, 2), pretrain_size=256)
    # The pooled grid of stages 1-3 is 1/32 of the image; stage 4 has that size itself.
    arch_defaults = dict(sr_ratios=(8, 4, 2, 1), pretrain_size=224)
    release = Release(
        names=(
            (r'^patch_embed(\d)\.', lambda m: f'stages.{int(m[1]) - 1}.patch_embed.'),
            (r'^block(\d)\.(\d+)\.', lambda m: f'stages.{int(m[1]) - 1}.blocks.{m[2]}.'),
            (r'^norm(\d)\.', lambda m: f'stages.{int(m[1]) - 1}.norm.'),
            (r'\.attn\.(temperature|query_embedding)$', r'.attn.scale.\1'),
            (r'\.attn\.relative_pos_bias_local$', '.attn.window_bias'),
            (r'\.attn\.cpb_fc', '.attn.position_bias.fc'),
            (r'\.attn\.sr\.', '.attn.pool_proj.'),
            (r'\.attn\.norm\.', '.attn.pool_norm.'),
            (r'\.dwconv\.dwconv\.', '.dwconv.'),
        )
    )
    no_weight_decay = ('attn.scale', 'window_bias', 'position_bias')

    def __init__(
        self,
        arch: str | dict = 'tiny',
        bias_mode: str = 'extrapolate',
        pretrain_size: int | tuple[int, int] | None = None,
        img_size: int | tuple[int, int] | None = None,
        pool_size: int | tuple[int, int] | None = None,
        window_size: int | Sequence[int] = 3,
        token_mixers: dict | Sequence[dict] | None = None,
        channel_mixer: dict | None = None,
        position_bias: dict | None = None,
        out_indices: tuple[int, ...] = (0, 1, 2, 3),
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        frozen_stages: int = -1,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(len(STRIDES), out_indices, frozen_stages, init_cfg, in_channels)
        settings = self.parse_arch(arch)
        pretrain_size = settings['pretrain_size'] if pretrain_size is None else pretrain_size
        img_size = pretrain_size if img_size is None else img_size
        self.stage_channels, self.stage_strides = tuple(settings['embed_dims']), STRIDES
        self.out_channels = tuple(self.stage_channels[index] for index in self.out_indices)

        window_sizes = one_for_each('window_size', window_size, int, len(STRIDES))
        token_mixers = one_for_each('token_mixers', token_mixers or {}, dict, len(STRIDES))

        drop_path_rates = np.linspace(0, drop_path_rate, sum(settings['depths'])).tolist()
        self.stages = nn.ModuleList()
        # Stages after the last output are not built: unused parameters break DistributedDataParallel.
        for stage in range(max(self.out_indices) + 1):
            embed_dims, num_heads = settings['embed_dims'][stage], settings['num_heads'][stage]
            depth, sr_ratio = settings['depths'][stage], settings['sr_ratios'][stage]
            patch_embed = PatchEmbed(in_channels, embed_dims, *((7, 4) if stage == 0 else (3, 2)))
            own_mixer = LengthScaledAttention if sr_ratio == 1 else AggregatedAttention
            token_mixer = {'type': own_mixer, **token_mixers[stage]}
            if not takes(token_mixer, 'sr_ratio'):  # it attends to the tokens themselves
                sr_ratio = 1
            # What the parts of a block may need to know of the stage.
            stage_settings = dict(
                embed_dims=embed_dims,
                num_heads=num_heads,
                ratio=MLP_RATIOS[stage],
                sr_ratio=sr_ratio,
                window_size=window_sizes[stage],
                **_grids(STRIDES[stage], sr_ratio, pretrain_size, img_size, pool_size),
                bias_mode=bias_mode,
            )
            blocks = [
                _block(token_mixer, channel_mixer or {}, position_bias or {}, drop_path_rates.pop(0), stage_settings)
                for _ in range(depth)
            ]
            self.stages.append(Stage(patch_embed, blocks, embed_dims, with_cp))
            in_channels = embed_dims
        self.apply(_init_module)
        self.train(self.training)

    def forward_features(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features of the stages `out_indices`, strides 4, 8, 16 and 32 (sizes rounded up)."""
        return tuple(
            layout.as_map(tokens, grid)
            for index, (tokens, grid) in enumerate(self.iterate_stages(x))
            if index in self.out_indices
        )

    def iterate_stages(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        # Channels that are last in memory let convolutions give and take tokens without a change of layout. vmap of
        # torch.func knows no such layout.
        x = x if is_transformed() else x.contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            x = stage(x)
            tokens = x.permute(0, 2, 3, 1)
            yield tokens, tokens.shape[1:3]

    def norm_of_stage(self, stage: int) -> nn.Module:
        """The identity: the LayerNorm of a stage is a part of it, and the next stage takes what it gives."""
        return nn.Identity()

    def set_img_size(self, img_size: int | tuple[int, int]) -> None:
        """Change `img_size`, the image size that `bias_mode='interpolate'` resizes the position bias from.

        Args:
            img_size: Int or (height, width) in pixels.
        """
        for stage, stride in zip(self.stages, STRIDES):
            grid = _grid(img_size, stride)
            for block in stage.blocks:
                bias = getattr(block.attn, 'position_bias', None)
                if isinstance(bias, LogCPB):
                    bias.train_grid = grid
                    bias.train_pooled_grid = getattr(block.attn, 'pooled_grid', tuple)(grid)

    @classmethod
    def position_bias_settings(
        cls,
        mode: str,
        img_size: int | tuple[int, int] | None = None,
        arch: str | dict = 'tiny',
        pretrain_size: int | tuple[int, int] | None = None,
    ) -> dict:
        """Arguments of `TransNeXt` for one of `TEST_MODES`, the methods of TransNeXt's table 5.

        'linear' keeps the pooled grid of the training size for images of any size, and extrapolates the bias to them
        (TransNeXt, appendix D.2): 7 x 7 for a classifier of 224 pixels, 12 x 12 for one of 384, 16 x 16 for a
        segmentor of 512. The cost of aggregated attention is then linear in the number of pixels. That of stage 4,
        whose tokens attend to all tokens, is not. 'unscaled' extrapolates without length scaling
        (`TrainedLengthQuery`).

        Args:
            mode: One of `TEST_MODES`.
            img_size: As in `TransNeXt`.
            arch: As in `TransNeXt`.
            pretrain_size: As in `TransNeXt`.

        Raises:
            InputError: There is no such mode or `arch`.
        """
        if mode not in TEST_MODES:
            raise InputError(f'the position bias must be one of {", ".join(TEST_MODES)}, got {mode!r}')
        if mode in ('extrapolate', 'interpolate'):
            return dict(bias_mode=mode, pool_size=None)
        settings = cls.parse_arch(arch)
        sr_ratios = settings['sr_ratios']
        img_size = next(size for size in (img_size, pretrain_size, settings['pretrain_size']) if size is not None)
        if mode == 'linear':
            pool_size = tuple(max(1, size // (STRIDES[0] * sr_ratios[0])) for size in to_2tuple(img_size))
            return dict(bias_mode='extrapolate', pool_size=pool_size)
        grids = (
            pooled_grid_of(_grid(img_size, stride), ratio, pool_size=None)
            for stride, ratio in zip(STRIDES, sr_ratios)
        )
        scales = [dict(type=TrainedLengthQuery, num_keys=math.prod(grid)) for grid in grids]
        return dict(bias_mode='extrapolate', pool_size=None, token_mixers=[dict(scale=scale) for scale in scales])

    def stage_modules(self, stage: int) -> list[nn.Module]:
        return [*self.stages[stage : stage + 1]]


def _grid(img_size: int | tuple[int, int], stride: int) -> Grid:
    """Token grid (height, width) of images of a size in pixels."""
    return tuple(math.ceil(size / stride) for size in to_2tuple(img_size))


def _grids(
    stride: int,
    sr_ratio: int,
    pretrain_size: int | tuple[int, int],
    img_size: int | tuple[int, int],
    pool_size: int | tuple[int, int] | None,
) -> dict[str, tuple[int, int] | None]:
    """Grids of a stage at the image sizes of pre-training and training, and its fixed pooled grid, if it has one."""
    pool_size = None if pool_size is None or sr_ratio == 1 else to_2tuple(pool_size)
    pretrain_grid = tuple(size // stride for size in to_2tuple(pretrain_size))
    train_grid = _grid(img_size, stride)
    return dict(
        pretrain_grid=pretrain_grid,
        pretrain_pooled_grid=pooled_grid_of(pretrain_grid, sr_ratio, pool_size),
        train_grid=train_grid,
        train_pooled_grid=pooled_grid_of(train_grid, sr_ratio, pool_size),
        pool_size=pool_size,
    )


def _block(
    token_mixer: dict, channel_mixer: dict, position_bias: dict, drop_path_rate: float, stage_settings: dict
) -> Block:
    bias = build_layer({'type': LogCPB, **position_bias}, **stage_settings)
    return Block(
        stage_settings['embed_dims'],
        build_layer(token_mixer, position_bias=bias, **stage_settings),
        build_layer({'type': ConvGLU, **channel_mixer}, **stage_settings),
        drop_path_rate,
        norm_layer=LayerNorm,
    )


def _init_module(module: nn.Module) -> None:
    """The authors' initial values, except that the biases of the patch embeddings are not 0.

    With zero biases, an untrained model turns the zero padding of a batch into exact zeros. At zero, l2 normalisation
    has the gradient 1 / eps and LayerNorm 1 / sqrt(eps), which makes the gradient norm about 10^10 times larger.
    `nn.Module.apply` visits a module after its children: the patch embedding's value replaces the convolution's.
    """
    init_linear(module)
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        nn.init.zeros_(module.bias)
    if isinstance(module, PatchEmbed):
        trunc_normal_(module.proj.bias, std=0.02)
