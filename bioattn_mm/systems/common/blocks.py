"""Parts that several backbones are built of."""

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp, PatchEmbed, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...ops.portable import is_same_grid
from ...registry import MODELS
from .attention_maps import AttentionMap, AttentionMaps
from .layout import Grid, head_dims_of, merge_heads, split_heads
from .resizing import resize_bicubic


class Block(nn.Module):
    """Pre-norm transformer block: `x + DropPath(attn(LN(x)))`, then `x + DropPath(mlp(LN(x)))`.

    Attention and feed-forward network take and return tokens of the block's shape; `drop_path` is the probability of
    skipping one in training (stochastic depth).
    """

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

    def forward(self, x: Tensor, *of_attention: object) -> Tensor:
        """Tokens with the channels last, (B, H, W, C) or (B, N, C), to the same shape."""
        x = x + through(self.drop_path, self.attn(self.norm1(x), *of_attention))
        return x + through(self.drop_path, self.mlp(self.norm2(x)))


class FeedForward(Mlp):
    """timm's `Mlp` without dropout and norm, which cost a third of its calls where they do nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to the same shape."""
        return self.fc2(self.act(self.fc1(x)))


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer gives; the identity, whose call takes as long as another, is not called."""
    return x if type(layer) is nn.Identity else layer(x)


def run_block(block: nn.Module, x: Tensor, with_cp: bool, *arguments: object) -> Tensor:
    """Apply a block; `with_cp` recomputes its activations in the backward pass instead of keeping them."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, *arguments, use_reentrant=False)
    return block(x, *arguments)


def patch_embedding(embed_dims: int, patch_size: int, in_channels: int = 3) -> PatchEmbed:
    """timm's patch embedding, (B, 3, H, W) to (B, H', W', C), of images padded at the bottom and right."""
    options = dict(flatten=False, output_fmt='NHWC', dynamic_img_pad=True)
    return PatchEmbed(None, patch_size, in_channels, embed_dims, **options)


@MODELS.register_module()
class SoftmaxAttention(nn.Module):
    """Multi-head self-attention, which several papers compare with.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        qkv_bias: Biases of queries, keys and values.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        return self.proj(merge_heads(F.scaled_dot_product_attention(query, key, value), x.shape))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention'."""
        query, key, _ = split_heads(self.qkv(x), 3, self.num_heads)
        weights = (query[:, :, queries] @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))


@MODELS.register_module()
class PositionEmbedding(nn.Module):
    """Adds a learned vector to the token of each position; for other grids it is resized (bicubic).

    Args:
        embed_dims: Width of the tokens.
        grid: Token grid (height, width) of the pre-training.
    """

    def __init__(self, embed_dims: int, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.weight = nn.Parameter(trunc_normal_(torch.empty(1, grid[0] * grid[1], embed_dims), std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return x + self.of_grid(tuple(x.shape[1:3]))

    def of_grid(self, grid: Grid) -> Tensor:
        """The embedding of a grid (H, W): (H, W, C)."""
        weight = self.weight.reshape(*self.grid, -1)
        return weight if is_same_grid(grid, self.grid) else resize_bicubic(weight, grid)


def pad_to_patches(x: Tensor, patch_size: int) -> Tensor:
    """Pad images, (B, C, H, W), with zeros at the bottom and right to whole patches."""
    # Not -length % patch_size: torch.compile lacks remainders of negative numbers for sizes that are left open.
    bottom, right = ((length + patch_size - 1) // patch_size * patch_size - length for length in x.shape[2:])
    return F.pad(x, (0, right, 0, bottom))


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer as all backbones here do; leaves other modules alone."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
