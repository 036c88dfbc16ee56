"""ConViT: Improving Vision Transformers with Soft Convolutional Inductive Biases (d'Ascoli et al., ICML 2021)."""

import numpy as np
import torch
from timm.layers import Attention, Mlp, PatchEmbed, to_2tuple, trunc_normal_
from torch import Tensor, nn

from ...errors import InputError
from ...layers import GPSA, PositionEmbedding
from ...registry import MODELS
from .base import Backbone, Block, init_linear, run_block

DEPTH = 12
PATCH_SIZE = 16
MLP_RATIO = 4


@MODELS.register_module()
class ConViT(Backbone):
    """Plain backbone of stride 16: gated positional self-attention (GPSA), then plain self-attention.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, the absolute position
    embedding is resized, and GPSA's relative positions are those of the actual grid.

    Args:
        arch: 'tiny', 'small' or 'base' (48 channels a head), their variants 'tiny-plus', 'small-plus' and
            'base-plus' (64 channels a head), or a dict with `num_heads` and `head_channels`.
        pretrain_size: Image size of the pre-training, int or (height, width) in pixels: the grid of the absolute
            position embedding.
        out_indices: Blocks (counted from 0) whose outputs are returned; the final LayerNorm is applied to the last
            block's alone. Blocks after the last of these are not built.
        local_up_to_layer: The first blocks, this many, have GPSA; the class token joins after them.
        locality_strength: Sharpness of GPSA's convolutional initialisation.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        frozen_stages: Blocks up to and including this one are frozen, and the patch embedding with them; -1 freezes
            none.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release, or timm's, as it
            is.

    Attributes:
        out_channels: Channels of each output.
    """

    arch_settings = {
        'tiny': dict(num_heads=4, head_channels=48),
        'tiny-plus': dict(num_heads=4, head_channels=64),
        'small': dict(num_heads=9, head_channels=48),
        'small-plus': dict(num_heads=9, head_channels=64),
        'base': dict(num_heads=16, head_channels=48),
        'base-plus': dict(num_heads=16, head_channels=64),
    }
    # timm's files have the same names.
    released_names = ((r'^pos_embed$', 'pos_embed.weight'),)

    def __init__(
        self,
        arch: str | dict = 'tiny',
        pretrain_size: int | tuple[int, int] = 224,
        out_indices: tuple[int, ...] = (3, 7, 9, 11),
        local_up_to_layer: int = 10,
        locality_strength: float = 1.0,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        frozen_stages: int = -1,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(DEPTH, out_indices, frozen_stages, init_cfg)
        settings = self.parse_arch(arch)
        num_heads = settings['num_heads']
        channels = num_heads * settings['head_channels']
        if not 0 <= local_up_to_layer <= DEPTH:
            raise InputError(f'local_up_to_layer must be 0 to {DEPTH}, got {local_up_to_layer}')
        self.out_channels = (channels,) * len(self.out_indices)
        self.local_up_to_layer = local_up_to_layer
        self.with_cp = with_cp

        self.patch_embed = PatchEmbed(
            None, PATCH_SIZE, embed_dim=channels, flatten=False, output_fmt='NHWC', dynamic_img_pad=True
        )
        self.pos_embed = PositionEmbedding(channels, tuple(size // PATCH_SIZE for size in to_2tuple(pretrain_size)))
        # Blocks after the last output are not built: unused parameters break DistributedDataParallel.
        drop_path_rates = np.linspace(0, drop_path_rate, DEPTH)[: max(self.out_indices) + 1].tolist()
        self.blocks = nn.ModuleList(
            Block(
                channels,
                GPSA(channels, num_heads, locality_strength)
                if index < local_up_to_layer
                else Attention(channels, num_heads),
                Mlp(channels, MLP_RATIO * channels),
                rate,
            )
            for index, rate in enumerate(drop_path_rates)
        )
        if len(self.blocks) > local_up_to_layer:
            self.cls_token = nn.Parameter(trunc_normal_(torch.empty(1, 1, channels), std=0.02))
        self.norm = nn.LayerNorm(channels, eps=1e-6) if len(self.blocks) == DEPTH else nn.Identity()
        self.apply(_init_module)
        self.train(self.training)

    def forward_features(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features after the blocks `out_indices`, all of stride 16 (sizes rounded up)."""
        x = self.pos_embed(self.patch_embed(x))
        grid = x.shape[1:3]
        outputs = []
        for index, block in enumerate(self.blocks):
            if index == self.local_up_to_layer:
                x = torch.cat((self.cls_token.expand(len(x), -1, -1), x.flatten(1, 2)), dim=1)
            x = run_block(block, x, self.with_cp)
            if index in self.out_indices:
                output = self.norm(x) if index == DEPTH - 1 else x
                if index >= self.local_up_to_layer:
                    output = output[:, 1:].unflatten(1, grid)
                outputs.append(output.permute(0, 3, 1, 2).contiguous())
        return tuple(outputs)

    def stage_modules(self, stage: int) -> list[nn.Module]:
        first = [self.patch_embed, self.pos_embed] if stage == 0 else []
        return [*first, *self.blocks[stage : stage + 1]]

    def train(self, mode: bool = True) -> 'ConViT':
        super().train(mode)
        if self.frozen_stages >= self.local_up_to_layer and len(self.blocks) > self.local_up_to_layer:
            self.cls_token.requires_grad_(False)
        return self


def _init_module(module: nn.Module) -> None:
    """The release's initial values; `nn.Module.apply` comes to a module after its children."""
    init_linear(module)
    if isinstance(module, GPSA):
        module.init_as_convolution()
