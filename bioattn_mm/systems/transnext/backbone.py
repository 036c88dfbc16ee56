"""TransNeXt: Robust Foveal Visual Perception for Vision Transformers (Shi, CVPR 2024)."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from timm.layers import to_2tuple, trunc_normal_
from timm.models.pvt_v2 import OverlapPatchEmbed
from torch import Tensor, nn

from ...checkpoints import Release
from ...errors import InputError
from ...ops.portable import is_transformed
from ...registry import MODELS
from ..common.backbone import HierarchicalBackbone
from ..common.blocks import Block, init_linear
from ..common.building import build_layer, one_for_each, takes
from ..common.layout import Grid
from .ablations import TrainedLengthQuery
from .attention import AggregatedAttention, LengthScaledAttention
from .blocks import Blocks
from .conv_glu import ConvGLU
from .half_precision import LayerNorm
from .position_bias import LogCPB, pooled_grid_of

STRIDES = (4, 8, 16, 32)
MLP_RATIOS = (8, 8, 4, 4)
# Choices of `TransNeXt.position_bias_settings`: how one trained model is tested at other sizes.
TEST_MODES = ('extrapolate', 'interpolate', 'linear', 'unscaled')


class Stage(nn.Module):
    """timm's patch embedding of PVTv2 with this `LayerNorm`, blocks, and the LayerNorm of the stage's output."""

    def __init__(self, patch_embed: OverlapPatchEmbed, blocks: list[Block], embed_dims: int, with_cp: bool) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        self.patch_embed.norm = LayerNorm(embed_dims)
        self.blocks = Blocks(blocks, with_cp)
        self.norm = LayerNorm(embed_dims, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H', W'), with the channels last in memory."""
        return self.blocks(self.patch_embed(x), self.norm).permute(0, 3, 1, 2)


@MODELS.register_module()
class TransNeXt(HierarchicalBackbone):
    """Four-stage backbone with aggregated attention, for any input size; stages after the last output are not built.

    Arguments that are not listed are those of `Backbone`.

    Args:
        arch: 'micro', 'tiny', 'small', 'base', 'micro-aaaa' (aggregated attention in all four stages), or a dict with
            `embed_dims`, `num_heads` and `depths`, four each; with `sr_ratios`, how much smaller each stage's pooled
            grid is than its tokens', (8, 4, 2, 1) if left out, where 1 stands for length-scaled attention to all
            tokens; and with `pretrain_size`, 224 if left out.
        bias_mode: Position bias at sizes not trained on: 'extrapolate' computes it for the actual coordinates,
            'interpolate' resizes the bias of `img_size`.
        pretrain_size: Image size of the pre-training, the unit of the relative coordinates: int or (height, width)
            in pixels; None for that of `arch`.
        img_size: Training image size that 'interpolate' resizes from, the same; None for `pretrain_size`.
        pool_size: Fixed pooled grid of the stages with aggregated attention, int or (height, width): the linear mode.
            None pools to 1/32 of the image, 1/64 with 'micro-aaaa'.
        window_size: Side of the window of aggregated attention in tokens, odd; one for all stages, or four.
        token_mixers: Settings of the attention, to vary it: a dict for all stages, or four. `type` is a class or its
            name in the registry, by default the stage's own. An attention gets, as far as it has these arguments,
            `embed_dims`, `num_heads`, `position_bias`, `sr_ratio`, `pool_size` and `window_size`.
        channel_mixer: Settings of the feed-forward network in the same way, `ConvGLU` by default. It gets
            `embed_dims` and `ratio`.
        position_bias: Settings of the position bias in the same way, `LogCPB` by default. It gets `num_heads`,
            `pretrain_grid`, `pretrain_pooled_grid`, `bias_mode`, `train_grid` and `train_pooled_grid`.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
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
        self.set_stages(settings['embed_dims'], STRIDES)

        window_sizes = one_for_each('window_size', window_size, int, len(STRIDES))
        token_mixers = one_for_each('token_mixers', token_mixers or {}, dict, len(STRIDES))

        drop_path_rates = np.linspace(0, drop_path_rate, sum(settings['depths'])).tolist()
        self.stages = nn.ModuleList()
        # Stages after the last output are not built: unused parameters break DistributedDataParallel.
        for stage in range(max(self.out_indices) + 1):
            embed_dims, num_heads = settings['embed_dims'][stage], settings['num_heads'][stage]
            depth, sr_ratio = settings['depths'][stage], settings['sr_ratios'][stage]
            patch_embed = OverlapPatchEmbed(*((7, 4) if stage == 0 else (3, 2)), in_channels, embed_dims)
            own_mixer = LengthScaledAttention if sr_ratio == 1 else AggregatedAttention
            token_mixer = {'type': own_mixer, **token_mixers[stage]}
            if not takes(token_mixer, 'sr_ratio'):  # it attends to the tokens themselves
                sr_ratio = 1
            # The parts of a block take of these what they need to know of the stage.
            stage_settings = dict(
                embed_dims=embed_dims,
                num_heads=num_heads,
                ratio=MLP_RATIOS[stage],
                sr_ratio=sr_ratio,
                pool_size=None if pool_size is None or sr_ratio == 1 else to_2tuple(pool_size),
                window_size=window_sizes[stage],
                pretrain_grid=tuple(size // STRIDES[stage] for size in to_2tuple(pretrain_size)),
                train_grid=_grid(img_size, STRIDES[stage]),
                bias_mode=bias_mode,
            )
            for kind in ('pretrain', 'train'):
                grid = pooled_grid_of(stage_settings[f'{kind}_grid'], sr_ratio, stage_settings['pool_size'])
                stage_settings[f'{kind}_pooled_grid'] = grid
            blocks = []
            for _ in range(depth):
                bias = build_layer({'type': LogCPB, **(position_bias or {})}, **stage_settings)
                attn = build_layer(token_mixer, position_bias=bias, **stage_settings)
                mlp = build_layer({'type': ConvGLU, **(channel_mixer or {})}, **stage_settings)
                blocks.append(Block(embed_dims, attn, mlp, drop_path_rates.pop(0), norm_layer=LayerNorm))
            self.stages.append(Stage(patch_embed, blocks, embed_dims, with_cp))
            in_channels = embed_dims
        self.apply(_init_module)
        self.train(self.training)

    def iterate_stages(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        # Channels that are last in memory let convolutions give and take tokens without a change of layout. vmap of
        # torch.func knows no such layout.
        x = x if is_transformed() else x.contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            x = stage(x)
            tokens = x.permute(0, 2, 3, 1)
            yield tokens, tokens.shape[1:3]

    def set_img_size(self, img_size: int | tuple[int, int]) -> None:
        """Change `img_size`, the image size that `bias_mode='interpolate'` resizes the position bias from."""
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

        'linear' keeps the pooled grid of the training size for images of any size, such as 7 x 7 of 224 pixels, and
        extrapolates the bias to them (TransNeXt, appendix D.2). The cost of aggregated attention is then linear in
        the number of pixels. 'unscaled' extrapolates without length scaling (`TrainedLengthQuery`).

        Raises:
            InputError: There is no such mode or `arch`.
        """
        if mode not in TEST_MODES:
            raise InputError(f'the position bias must be one of {", ".join(TEST_MODES)}, got {mode!r}')
        if mode in ('extrapolate', 'interpolate'):
            return dict(bias_mode=mode, pool_size=None)
        settings = cls.parse_arch(arch)
        img_size = next(size for size in (img_size, pretrain_size, settings['pretrain_size']) if size is not None)
        grids = [
            pooled_grid_of(_grid(img_size, stride), ratio, None)
            for stride, ratio in zip(STRIDES, settings['sr_ratios'])
        ]
        if mode == 'linear':
            return dict(bias_mode='extrapolate', pool_size=grids[0])
        scales = [dict(type=TrainedLengthQuery, num_keys=math.prod(grid)) for grid in grids]
        return dict(bias_mode='extrapolate', pool_size=None, token_mixers=[dict(scale=scale) for scale in scales])

    def stage_modules(self, stage: int) -> list[nn.Module]:
        return [*self.stages[stage : stage + 1]]


def _grid(img_size: int | tuple[int, int], stride: int) -> Grid:
    """Token grid (height, width) of images of a size in pixels."""
    return tuple(math.ceil(size / stride) for size in to_2tuple(img_size))


def _init_module(module: nn.Module) -> None:
    """The authors' initial values, except that the biases of the patch embeddings are not 0.

    With zero biases, an untrained model turns the zero padding of a batch into exact zeros, where the gradients of l2
    normalisation and LayerNorm are huge. `nn.Module.apply` visits a module after its children.
    """
    init_linear(module)
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        nn.init.zeros_(module.bias)
    if isinstance(module, OverlapPatchEmbed):
        trunc_normal_(module.proj.bias, std=0.02)
