"""ConViT: Improving Vision Transformers with Soft Convolutional Inductive Biases (d'Ascoli et al., ICML 2021)."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import torch
from timm.layers import Attention, to_2tuple, trunc_normal_
from torch import Tensor, nn

from ...checkpoints import Release
from ...errors import InputError
from ...ops.arguments import autocast_dtype
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps, Recording
from ..common.backbone import PlainBackbone
from ..common.blocks import Block, FeedForward, PositionEmbedding, init_linear, patch_embedding
from ..common.building import build_layer, one_for_each
from .attention import GPSA, computed_together

PATCH_SIZE = 16
MLP_RATIO = 4


@MODELS.register_module()
class ConViT(PlainBackbone):
    """Plain backbone of stride 16: gated positional self-attention (GPSA), then plain self-attention.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, the absolute position
    embedding is resized, and GPSA's relative positions are those of the actual grid. The release classifies by
    `out_type='cls_token'`. Arguments that are not listed are those of `PlainBackbone`.

    Args:
        arch: 'tiny', 'small' or 'base' (48 channels a head), their variants 'tiny-plus', 'small-plus' and
            'base-plus' (64 channels a head), or a dict with `embed_dims`, `num_layers` and `num_heads`.
        pretrain_size: Image size of the pre-training, int or (height, width) in pixels: the grid of the absolute
            position embedding.
        local_up_to_layer: Number of blocks with GPSA, the first ones; the class token is inserted after them.
        locality_strength: How local the convolutional initialisation of GPSA is; None leaves random values.
        token_mixers: Settings of the attention of these blocks, to vary it: a dict for all of them, or one for each.
            `type` is a class or its name in the registry, `GPSA` by default. It gets, as far as it has these
            arguments, `embed_dims`, `num_heads` and `locality_strength`.
        pos_embed: Whether there is an absolute position embedding, which GPSA does not need.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
    """

    arch_settings = {
        'tiny': dict(embed_dims=192, num_layers=12, num_heads=4),
        'tiny-plus': dict(embed_dims=256, num_layers=12, num_heads=4),
        'small': dict(embed_dims=432, num_layers=12, num_heads=9),
        'small-plus': dict(embed_dims=576, num_layers=12, num_heads=9),
        'base': dict(embed_dims=768, num_layers=12, num_heads=16),
        'base-plus': dict(embed_dims=1024, num_layers=12, num_heads=16),
    }
    out_types = (*PlainBackbone.out_types, 'cls_token')
    # timm's files have the same names.
    release = Release(names=((r'^pos_embed$', 'pos_embed.weight'),))
    no_weight_decay = ('pos_embed', 'cls_token')

    def __init__(
        self,
        arch: str | dict = 'tiny',
        pretrain_size: int | tuple[int, int] = 224,
        out_indices: tuple[int, ...] = (3, 7, 9, 11),
        local_up_to_layer: int = 10,
        locality_strength: float | None = 1.0,
        token_mixers: dict | Sequence[dict] | None = None,
        pos_embed: bool = True,
        out_type: str = 'featmap',
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        frozen_stages: int = -1,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        embed_dims, num_layers, num_heads = (settings[key] for key in ('embed_dims', 'num_layers', 'num_heads'))
        super().__init__(num_layers, out_indices, frozen_stages, with_cp, init_cfg, out_type, in_channels)
        if not 0 <= local_up_to_layer <= num_layers:
            raise InputError(f'local_up_to_layer must be 0 to {num_layers}, got {local_up_to_layer}')
        if out_type == 'cls_token' and min(self.out_indices) < local_up_to_layer:
            raise InputError(
                f"out_type='cls_token' needs out_indices from {local_up_to_layer} on, the first block with a class "
                f'token, got {self.out_indices}'
            )
        self.set_stages((embed_dims,) * num_layers, (PATCH_SIZE,) * num_layers)
        self.local_up_to_layer = local_up_to_layer

        self.patch_embed = patch_embedding(embed_dims, PATCH_SIZE, in_channels)
        grid = tuple(size // PATCH_SIZE for size in to_2tuple(pretrain_size))
        self.pos_embed = PositionEmbedding(embed_dims, grid) if pos_embed else nn.Identity()
        token_mixers = one_for_each('token_mixers', token_mixers or {}, dict, local_up_to_layer)

        def attention(index: int) -> nn.Module:
            if index >= local_up_to_layer:
                return Attention(embed_dims, num_heads)
            known = dict(embed_dims=embed_dims, num_heads=num_heads, locality_strength=locality_strength)
            return build_layer({'type': GPSA, **token_mixers[index]}, **known)

        self.blocks = nn.ModuleList(
            Block(embed_dims, attention(index), FeedForward(embed_dims, MLP_RATIO * embed_dims), rate)
            for index, rate in enumerate(self.drop_path_rates(drop_path_rate))
        )
        if self.num_built > local_up_to_layer:
            self.cls_token = nn.Parameter(trunc_normal_(torch.empty(1, 1, embed_dims), std=0.02))
        self.norm = self.final_norm(embed_dims)
        self.apply(_init_module)
        self.train(self.training)

    def embed(self, x: Tensor) -> Tensor:
        return self.pos_embed(self.patch_embed(x))

    def arguments_of_blocks(self, x: Tensor, at_once: bool) -> Iterable[tuple]:
        local = [*self.blocks][: self.local_up_to_layer] if at_once else []
        return chain(computed_together(local, tuple(x.shape[1:3]), autocast_dtype(x)), repeat(()))

    def before_block(self, x: Tensor, index: int) -> Tensor:
        """Flatten the grid and prepend the class token before the first block without GPSA."""
        if index != self.local_up_to_layer:
            return x
        return torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x.flatten(1, 2)), dim=1)

    def train(self, mode: bool = True) -> 'ConViT':
        super().train(mode)
        if self.frozen_stages >= self.local_up_to_layer and self.num_built > self.local_up_to_layer:
            self.cls_token.requires_grad_(False)
        return self

    def attention_maps(self, recording: Recording, queries: Tensor) -> AttentionMaps:
        """As in `Backbone`. In blocks with a class token, what the weights lack to a sum of 1 goes to that token."""
        layer, (x,) = recording.layer, recording.inputs
        if x.dim() == 4:
            return super().attention_maps(recording, queries)
        query, key, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (query[:, :, 1 + queries] @ key.transpose(-2, -1) * layer.scale).softmax(-1)
        return dict(attention=AttentionMap.of_grid(weights[..., 1:], recording.grid))


def _init_module(module: nn.Module) -> None:
    """The release's initial values; `nn.Module.apply` visits a module after its children."""
    init_linear(module)
    if isinstance(module, GPSA) and module.locality_strength is not None:
        module.init_as_convolution()
