"""ViT with relative positions and Gaussian attention bias (Kim et al., BMVC 2023)."""

from collections.abc import Iterable
from itertools import repeat

from timm.layers import LayerScale
from torch import Tensor, nn

from ...checkpoints import Release
from ...registry import MODELS
from ..common.backbone import PlainBackbone
from ..common.blocks import Block, FeedForward, init_linear, patch_embedding, through
from .vit_attention import GaussianRelPosAttention, tables_of

PATCH_SIZE = 16
# Initial value of the learned scale of each branch, as in timm's models.
LAYER_SCALE = 1e-6


class GABBlock(Block):
    """timm's `RelPosBlock`: a learned scale of each channel after attention and MLP. (B, H, W, C) to the same."""

    def __init__(self, embed_dims: int, attn: nn.Module, drop_path: float) -> None:
        super().__init__(embed_dims, attn, FeedForward(embed_dims, 4 * embed_dims), drop_path)
        self.ls1 = LayerScale(embed_dims, LAYER_SCALE)
        self.ls2 = LayerScale(embed_dims, LAYER_SCALE)

    def forward(self, x: Tensor, *table: Tensor) -> Tensor:
        x = x + through(self.drop_path, self.ls1.gamma * self.attn(self.norm1(x), *table))
        return x + through(self.drop_path, self.ls2.gamma * self.mlp(self.norm2(x)))


@MODELS.register_module()
class GABViT(PlainBackbone):
    """Plain backbone of stride 16: timm's `vit_relpos_*_patch16_224` with a Gaussian bias in every attention.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, and the relative positions
    are those of the actual grid. There is no absolute position embedding and no class token.

    There is no final LayerNorm of the tokens: in these ViTs it belongs to the classifier, which normalises their mean
    (timm's `fc_norm`). Arguments that are not listed are those of `PlainBackbone`.

    Args:
        arch: 'small', 'medium' or 'base', or a dict with `embed_dims`, `num_layers` and `num_heads`.
        sigma: Initial standard deviation of the Gaussians, in patches; the default is that of the authors' training
            script (github.com/kmbmjn/GaussianAttentionBias).
        amplitude: Initial A of eq. 3; the default is that of the same script. 0 gives timm's model, without
            gradients for the Gaussians.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        gaussian_per_head: Whether each head of a layer has a Gaussian of its own, or all share one, as the paper has
            chosen.
        new_position_bias: Whether the MLPs of the position bias start at random values in spite of `init_cfg`, as in
            the authors' fine-tuning on small data sets (table 3).
        init_cfg: As in `Backbone`; also timm's file, which lacks the Gaussians.
    """

    arch_settings = dict(
        small=dict(embed_dims=384, num_layers=12, num_heads=6),
        medium=dict(embed_dims=512, num_layers=12, num_heads=8),
        base=dict(embed_dims=768, num_layers=12, num_heads=12),
    )
    release = Release(
        # The authors' training script adds two parameters to timm's layer.
        names=((r'\.rel_pos\.(sigma|amplitude)_param$', r'.rel_pos.gaussian.\1'),),
        optional=(r'\.gaussian\.',),
    )
    no_weight_decay = ('gaussian',)

    def __init__(
        self,
        arch: str | dict = 'small',
        sigma: float = 5.0,
        amplitude: float = 1.0,
        out_indices: tuple[int, ...] = (3, 7, 9, 11),
        out_type: str = 'featmap',
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        gaussian_per_head: bool = False,
        frozen_stages: int = -1,
        in_channels: int = 3,
        new_position_bias: bool = False,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        embed_dims, num_heads = settings['embed_dims'], settings['num_heads']
        super().__init__(settings['num_layers'], out_indices, frozen_stages, with_cp, init_cfg, out_type, in_channels)
        self.set_stages((embed_dims,) * self.num_layers, (PATCH_SIZE,) * self.num_layers)
        self.patch_embed = patch_embedding(embed_dims, PATCH_SIZE, in_channels)
        arguments = (embed_dims, num_heads, sigma, amplitude, gaussian_per_head)
        self.blocks = nn.ModuleList(
            GABBlock(embed_dims, GaussianRelPosAttention(*arguments), rate)
            for rate in self.drop_path_rates(drop_path_rate)
        )
        self.fc_norm = self.pooled_norm(embed_dims)
        self.apply(init_linear)
        self.new_position_bias = new_position_bias
        self.train(self.training)

    def init_weights(self) -> None:
        super().init_weights()
        if self.new_position_bias:
            for block in self.blocks:
                block.attn.rel_pos.mlp.fc1.reset_parameters()
                block.attn.rel_pos.mlp.fc2.reset_parameters()

    def embed(self, x: Tensor) -> Tensor:
        return self.patch_embed(x)

    def arguments_of_blocks(self, x: Tensor, at_once: bool) -> Iterable[tuple]:
        return tables_of(self.blocks, tuple(x.shape[1:3])) if at_once and not self.with_cp else repeat(())
