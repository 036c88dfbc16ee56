"""ViT with relative positions and Gaussian attention bias (Kim et al., BMVC 2023)."""

from functools import partial

import numpy as np
from timm.layers import PatchEmbed
from timm.models.vision_transformer_relpos import RelPosBlock
from torch import Tensor, nn

from ...layers import GaussianRelPosAttention
from ...layers.arguments import channels_of_head
from ...registry import MODELS
from .base import Backbone, init_linear, run_block

DEPTH = 12
PATCH_SIZE = 16
# What timm's models start from: each branch is scaled by a learned vector.
LAYER_SCALE = 1e-6


class GABBlock(RelPosBlock):
    """timm's block, with the Gaussian bias in its attention; tokens keep their grid: (B, H, W, C) to the same."""

    def __init__(
        self,
        channels: int,
        num_heads: int,
        drop_path: float,
        sigma: float,
        amplitude: float,
        bias_in_kernel: bool,
    ) -> None:
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        super().__init__(channels, num_heads, init_values=LAYER_SCALE, drop_path=drop_path, norm_layer=norm_layer)
        self.attn = GaussianRelPosAttention(channels, num_heads, sigma, amplitude, bias_in_kernel)


@MODELS.register_module()
class GABViT(Backbone):
    """Plain backbone of stride 16: timm's `vit_relpos_*_patch16_224` with a Gaussian bias in every attention.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, and the relative positions
    are those of the actual grid. There is no absolute position embedding and no class token.

    These ViTs have no final LayerNorm: the classifier normalises the mean of the tokens (timm's `fc_norm`), so that
    the last output is, like the others, what its block gives.

    Args:
        arch: 'small', 'medium' or 'base', or a dict with `channels` and `num_heads`.
        sigma: Initial standard deviation of the Gaussians, in patches. The paper's main text does not print initial
            values; its fits of learned biases lie at 4 to 7 patches.
        amplitude: Initial A of eq. 3, not in the paper's main text either. 0 gives timm's model, without gradients
            for the Gaussians.
        out_indices: Blocks (counted from 0) whose outputs are returned. Blocks after the last of these are not built.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        bias_in_kernel: On a GPU, compute the position bias inside the attention kernel (PyTorch's flex attention),
            instead of storing it for all pairs of tokens: saves memory at large inputs, compiles at the first.
        frozen_stages: Blocks up to and including this one are frozen, and the patch embedding with them; -1 freezes
            none.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes timm's file as it is, whose lack of Gaussians
            leaves them at their initial values, or one of this package.

    Attributes:
        out_channels: Channels of each output.
    """

    arch_settings = dict(
        small=dict(channels=384, num_heads=6),
        medium=dict(channels=512, num_heads=8),
        base=dict(channels=768, num_heads=12),
    )
    optional_weights = (r'\.gaussian\.',)

    def __init__(
        self,
        arch: str | dict = 'small',
        sigma: float = 5.0,
        amplitude: float = 1.0,
        out_indices: tuple[int, ...] = (3, 7, 9, 11),
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        bias_in_kernel: bool = False,
        frozen_stages: int = -1,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(DEPTH, out_indices, frozen_stages, init_cfg)
        settings = self.parse_arch(arch)
        channels, num_heads = settings['channels'], settings['num_heads']
        channels_of_head(channels, num_heads)
        self.out_channels = (channels,) * len(self.out_indices)
        self.with_cp = with_cp

        self.patch_embed = PatchEmbed(
            None, PATCH_SIZE, embed_dim=channels, flatten=False, output_fmt='NHWC', dynamic_img_pad=True
        )
        # Blocks after the last output are not built: unused parameters break DistributedDataParallel.
        drop_path_rates = np.linspace(0, drop_path_rate, DEPTH)[: max(self.out_indices) + 1].tolist()
        self.blocks = nn.ModuleList(
            GABBlock(channels, num_heads, rate, sigma, amplitude, bias_in_kernel) for rate in drop_path_rates
        )
        self.apply(init_linear)
        self.train(self.training)

    def forward_features(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features after the blocks `out_indices`, all of stride 16 (sizes rounded up)."""
        x = self.patch_embed(x)
        outputs = []
        for index, block in enumerate(self.blocks):
            x = run_block(block, x, self.with_cp)
            if index in self.out_indices:
                outputs.append(x.permute(0, 3, 1, 2).contiguous())
        return tuple(outputs)

    def stage_modules(self, stage: int) -> list[nn.Module]:
        first = [self.patch_embed] if stage == 0 else []
        return [*first, *self.blocks[stage : stage + 1]]
