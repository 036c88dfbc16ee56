"""Parts that several backbones are built of."""

import torch
import torch.nn.functional as F
from timm.layers import DropPath, PatchEmbed, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Pre-norm transformer block: `x + DropPath(attn(LN(x)))`, then `x + DropPath(mlp(LN(x)))`.

    Args:
        embed_dims: Width of the tokens.
        attn: Attention; takes and returns tokens of the block's shape.
        mlp: Feed-forward network; the same.
        drop_path: Probability of skipping a branch in training (stochastic depth).
        norm_layer: Class of the two norms.
    """

    cast_at_once = ('norm1', 'norm2')

    def __init__(
        self,
        embed_dims: int,
        attn: nn.Module,
        mlp: nn.Module,
        drop_path: float,
        norm_layer: type[nn.LayerNorm] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.norm1 = norm_layer(embed_dims, eps=1e-6)
        self.attn = attn
        self.norm2 = norm_layer(embed_dims, eps=1e-6)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Tokens with the channels last, (B, H, W, C) or (B, N, C), to the same shape."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def run_block(block: nn.Module, x: Tensor, with_cp: bool) -> Tensor:
    """Apply a block; `with_cp` recomputes its activations in the backward pass instead of keeping them."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, use_reentrant=False)
    return block(x)


def patch_embedding(embed_dims: int, patch_size: int, in_channels: int = 3) -> PatchEmbed:
    """timm's patch embedding, (B, 3, H, W) to (B, H', W', C).

    The image is padded at the bottom and right to whole patches.
    """
    return PatchEmbed(
        None,
        patch_size,
        in_channels,
        embed_dim=embed_dims,
        flatten=False,
        output_fmt='NHWC',
        dynamic_img_pad=True,
    )


def pad_to_patches(x: Tensor, patch_size: int) -> Tensor:
    """Pad images, (B, C, H, W), with zeros at the bottom and right to whole patches."""
    return F.pad(x, (0, -x.shape[3] % patch_size, 0, -x.shape[2] % patch_size))


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer as all backbones here do; leaves other modules alone."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
