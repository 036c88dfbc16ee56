"""Swin Transformer (Liu et al., ICCV 2021) with Gaussian attention bias (Kim et al., BMVC 2023)."""

from collections.abc import Iterator

import numpy as np
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ...checkpoints import Release
from ...registry import MODELS
from ..common.backbone import HierarchicalBackbone
from ..common.blocks import init_linear, run_block
from ..common.layout import Grid

NUM_STAGES = 4
PATCH_SIZE = 4


@MODELS.register_module()
class GABSwin(HierarchicalBackbone):
    """Four-stage backbone: mmpretrain's Swin Transformer with a Gaussian bias in every window attention.

    Any input size: maps are padded at the bottom and right to whole patches and windows. Each output has a LayerNorm
    of its own; stages after the last one are not built. Arguments that are not listed are those of `Backbone`.

    Args:
        arch: 'tiny', 'small' or 'base', or a dict with `embed_dims` (of the first stage), `depths` and `num_heads`.
        window_size: Height and width of the windows, in tokens.
        pad_small_map: Pad maps that are smaller than a window, and shift windows also where a side of the map is one
            window, as in dense prediction. False, mmpretrain's default, is for Swin's classifiers: no shift there,
            and smaller maps are an error.
        sigma: Initial standard deviation of the Gaussians, in tokens; None for half a window. Neither the paper's
            main text nor the authors' code, which is for ViT, has a value for Swin.
        amplitude: Initial A of GAB's eq. 3; the default is that of the authors' training script for ViT. 0 gives the
            plain Swin, without gradients for the Gaussians.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the Swin authors' release, one with the
            names of mmdet, mmseg and mmpretrain, or one of this package, as it is. The Gaussians and the LayerNorms
            of the outputs keep their initial values if the file lacks them, as ImageNet files do.
    """

    # The layers are mmpretrain's, and are looked into as those of other libraries.
    attention_layers = None
    arch_settings = dict(
        tiny=dict(embed_dims=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        small=dict(embed_dims=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
        base=dict(embed_dims=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)),
    )
    # The windows of mmpretrain's layer are padded as the size needs it, at every stage: symbols cannot follow that.
    exports_any_size = False
    no_weight_decay = ('gaussian', 'relative_position_bias_table')
    release = Release(
        # These are the names of the Swin authors; those of mmdet, mmseg and mmpretrain are the names here.
        names=(
            (r'^layers\.', 'stages.'),
            (r'^patch_embed\.proj\.', 'patch_embed.projection.'),
            (r'\.attn\.(?!w_msa\.)', '.attn.w_msa.'),
            (r'\.mlp\.fc1\.', '.ffn.layers.0.0.'),
            (r'\.mlp\.fc2\.', '.ffn.layers.1.'),
        ),
        # Dense models learn the LayerNorms of their outputs anew, as mmdet's and mmseg's Swin does.
        names_of_classifier=((r'^norm\.', 'norm3.'),),
        # Patch merging flattens 2 x 2 patches in the order (column, row, channel) in the authors' code, and in the
        # order (channel, row, column) in OpenMMLab's.
        values={
            r'^layers\.\d\.downsample\.': lambda value: value.unflatten(-1, (2, 2, -1)).transpose(-1, -3).flatten(-3)
        },
        # mmpretrain saves the index, a constant, with the weights.
        optional=(r'\.gaussian\.', r'^norm\d\.', r'\.relative_position_index$'),
    )

    def __init__(
        self,
        arch: str | dict = 'tiny',
        window_size: int = 7,
        pad_small_map: bool = True,
        sigma: float | None = None,
        amplitude: float = 1.0,
        out_indices: tuple[int, ...] = (0, 1, 2, 3),
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        frozen_stages: int = -1,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(NUM_STAGES, out_indices, frozen_stages, init_cfg, in_channels)
        settings = self.parse_arch(arch)
        # Not imported at the top: mmpretrain takes seconds, and the other backbones do not need it.
        from mmcv.cnn.bricks.transformer import PatchEmbed

        from .swin_attention import Stage

        num_stages = max(self.out_indices) + 1
        embed_dims = [settings['embed_dims'] * 2**stage for stage in range(NUM_STAGES)]
        self.set_stages(embed_dims, (PATCH_SIZE * 2**stage for stage in range(NUM_STAGES)))
        self.with_cp = with_cp

        drop_path_rates = np.linspace(0, drop_path_rate, sum(settings['depths'])).tolist()
        # (B, 3, H, W) to tokens, (B, N, C), and their grid.
        self.patch_embed = PatchEmbed(
            in_channels, embed_dims[0], kernel_size=PATCH_SIZE, stride=PATCH_SIZE, norm_cfg=dict(type='LN')
        )
        # Stages after the last output are not built: unused parameters break DistributedDataParallel.
        self.stages = nn.ModuleList(
            Stage(
                embed_dims[stage],
                [drop_path_rates.pop(0) for _ in range(settings['depths'][stage])],
                window_size,
                downsample=stage < num_stages - 1,
                num_heads=settings['num_heads'][stage],
                pad_small_map=pad_small_map,
                sigma=window_size / 2 if sigma is None else sigma,
                amplitude=amplitude,
            )
            for stage in range(num_stages)
        )
        for stage in self.out_indices:
            self.add_module(f'norm{stage}', nn.LayerNorm(embed_dims[stage]))
        self.apply(_init_module)
        self.train(self.training)

    def iterate_stages(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        x, grid = self.patch_embed(x)  # (B, N, C), (H', W')
        for stage in self.stages:
            for block in stage.blocks:
                x = run_block(block, x, self.with_cp, grid)
            yield x, grid
            if stage.downsample is not None:
                x, grid = stage.downsample(x, grid)

    def norm_of_stage(self, stage: int) -> nn.Module:
        return getattr(self, f'norm{stage}', nn.Identity())

    def as_output(self, stage: int, tokens: Tensor, grid: Grid) -> Tensor:
        return super().as_output(stage, self.norm_of_stage(stage)(tokens), grid)

    def stage_modules(self, stage: int) -> list[nn.Module]:
        embedding = [self.patch_embed] if stage == 0 else []
        return [*embedding, *self.stages[stage : stage + 1], self.norm_of_stage(stage)]


def _init_module(module: nn.Module) -> None:
    init_linear(module)
    if hasattr(module, 'relative_position_bias_table'):
        trunc_normal_(module.relative_position_bias_table, std=0.02)
