"""ViT with relative positions and Gaussian attention bias (Kim et al., BMVC 2023)."""

from functools import partial

from timm.models.vision_transformer_relpos import RelPosBlock
from torch import Tensor, nn

from ...checkpoints import Release
from ...layers import GaussianRelPosAttention
from ...layers.arguments import head_dims_of
from ...registry import MODELS
from .base import PlainBackbone
from .blocks import init_linear, patch_embedding

PATCH_SIZE = 16
# Initial value of the learned scale of each branch, as in timm's models.
LAYER_SCALE = 1e-6


class GABBlock(RelPosBlock):
    """timm's block, with the Gaussian bias in its attention; tokens keep their grid: (B, H, W, C) to the same."""

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        drop_path: float,
        sigma: float,
        amplitude: float,
        bias_in_kernel: bool,
        gaussian_per_head: bool,
    ) -> None:
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        super().__init__(embed_dims, num_heads, init_values=LAYER_SCALE, drop_path=drop_path, norm_layer=norm_layer)
        self.attn = GaussianRelPosAttention(
            embed_dims, num_heads, sigma, amplitude, bias_in_kernel, gaussian_per_head
        )


@MODELS.register_module()
class GABViT(PlainBackbone):
    """Plain backbone of stride 16: timm's `vit_relpos_*_patch16_224` with a Gaussian bias in every attention.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, and the relative positions
    are those of the actual grid. There is no absolute position embedding and no class token.

    There is no final LayerNorm of the tokens: in these ViTs it belongs to the classifier, which normalises their mean
    (timm's `fc_norm`).

    Args:
        arch: 'small', 'medium' or 'base', or a dict with `embed_dims`, `num_layers` and `num_heads`.
        sigma: Initial standard deviation of the Gaussians, in patches; the default is that of the authors' training
            script (github.com/kmbmjn/GaussianAttentionBias).
        amplitude: Initial A of eq. 3; the default is that of the same script. 0 gives timm's model, without
            gradients for the Gaussians.
        out_indices: Blocks (counted from 0) whose outputs are returned. Blocks after the last of these are not built.
        out_type: 'featmap' for maps, (B, C, H, W), or, for a classifier, 'avg_featmap' for the mean of their tokens,
            (B, C), normalised.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        bias_in_kernel: On a GPU, compute the position bias inside the attention kernel (PyTorch's flex attention),
            instead of storing it for all pairs of tokens: saves memory at large inputs, compiles at the first.
        gaussian_per_head: Whether each head of a layer has a Gaussian of its own, or all share one, as the paper has
            chosen.
        frozen_stages: Blocks up to and including this one are frozen, and the patch embedding with them; -1 freezes
            none.
        in_channels: Channels of the images; weights for three are converted as timm does, see `Backbone`.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes timm's file as it is (the Gaussians, which it
            lacks, keep their initial values), or one of this package.

    Attributes:
        out_channels: Channels of each output.
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
        bias_in_kernel: bool = False,
        gaussian_per_head: bool = False,
        frozen_stages: int = -1,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        embed_dims, num_heads = settings['embed_dims'], settings['num_heads']
        super().__init__(settings['num_layers'], out_indices, frozen_stages, with_cp, init_cfg, out_type, in_channels)
        head_dims_of(embed_dims, num_heads)
        num_layers = self.num_layers
        self.stage_channels, self.stage_strides = (embed_dims,) * num_layers, (PATCH_SIZE,) * num_layers
        self.out_channels = tuple(self.stage_channels[index] for index in self.out_indices)
        self.patch_embed = patch_embedding(embed_dims, PATCH_SIZE, in_channels)
        self.blocks = nn.ModuleList(
            GABBlock(embed_dims, num_heads, rate, sigma, amplitude, bias_in_kernel, gaussian_per_head)
            for rate in self.drop_path_rates(drop_path_rate)
        )
        self.fc_norm = self.pooled_norm(embed_dims)
        self.apply(init_linear)
        self.train(self.training)

    def embed(self, x: Tensor) -> Tensor:
        return self.patch_embed(x)

    def embedding_modules(self) -> list[nn.Module]:
        return [self.patch_embed]
