"""Parts that several backbones are built of."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from timm.layers import DropPath, PatchEmbed, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...layers.aggregated_attention import computed_together
from ...layers.grid import Grid
from ...layers.half_precision import LayerNorm
from ...ops import add_norm, has_add_norm
from ...ops.arguments import autocast_dtype
from ...ops.constants import cached_constant
from ...ops.whole_layers import has_hooks


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

    def forward(
        self,
        x: Tensor,
        normed: Tensor | None = None,
        next_norm: nn.LayerNorm | None = None,
        factors: Tensor | None = None,
        *of_parameters: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Tokens with the channels last, (B, H, W, C) or (B, N, C), to the same shape.

        Args:
            x: Tokens.
            normed: The first norm of (B, H, W, C) tokens, if it is known; they have an `add_norm`.
            next_norm: With it, what follows this block.
            factors: With it, the factors of the branches, (2, B), float32: those of stochastic depth.
            *of_parameters: With it, what `computed_together` gives for the attention.

        Returns:
            Tokens; with `normed` also their `next_norm`.
        """
        if normed is None:
            x = x + self.drop_path(self.attn(self.norm1(x)))
            return x + self.drop_path(self.mlp(self.norm2(x)))
        factors = (None, None) if factors is None else factors
        x, normed = _add_branch(x, self.attn, normed, self.norm2, factors[0], *of_parameters)
        return _add_branch(x, self.mlp, normed, next_norm, factors[1])


def run_block(block: nn.Module, x: Tensor, with_cp: bool, *arguments: object) -> Tensor:
    """Apply a block; `with_cp` recomputes its activations in the backward pass instead of keeping them."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, *arguments, use_reentrant=False)
    return block(x, *arguments)


def run_blocks(blocks: Sequence[Block], x: Tensor, norm: nn.LayerNorm, with_cp: bool) -> Tensor:
    """Apply blocks and the norm that follows them, on a GPU with what is between two branches in one kernel.

    Args:
        blocks: One or more.
        x: Tokens with the channels last.
        norm: Of the output of the last block.
        with_cp: As in `run_block`.

    Returns:
        The normalised tokens.
    """
    if not _is_fused(blocks, x, norm):
        for block in blocks:
            x = run_block(block, x, with_cp)
        return norm(x)
    normed = blocks[0].norm1(x)
    next_norms = [*[block.norm1 for block in blocks[1:]], norm]
    parts = zip(blocks, next_norms, _drop_path_factors(blocks, x), _of_parameters(blocks, tuple(x.shape[1:3])))
    for block, next_norm, factors, of_parameters in parts:
        x, normed = run_block(block, x, with_cp, normed, next_norm, factors, *of_parameters)
    return normed


def _is_fused(blocks: Sequence[Block], x: Tensor, norm: nn.LayerNorm) -> bool:
    """Whether residuals and norms of blocks run in kernels that compute both."""
    # torch.fx traces with what is no tensor. In float16, autocast leaves the norms and the sums in float32, and the
    # branches are float16.
    if not isinstance(x, Tensor) or not has_add_norm(x) or autocast_dtype(x) != x.dtype:
        return False
    norms = [norm, *[norm for block in blocks for norm in (block.norm1, block.norm2)]]
    drops = [block.drop_path for block in blocks]
    # Who looks at a block sees what it is called with. FSDP gathers the parameters of a block when it is called, and
    # those of the next block's norm are not there yet.
    return (
        all(type(norm) is LayerNorm for norm in norms)
        and all(type(drop) is nn.Identity or type(drop) is DropPath and drop.drop_prob < 1 for drop in drops)
        and not has_hooks(*blocks, *norms, *drops)
    )


def _of_parameters(blocks: Sequence[Block], grid: Grid) -> list[tuple[Tensor, ...]]:
    """`computed_together` of the blocks' attention; nothing where others look at one, or gather its parameters."""
    layers = [block.attn for block in blocks]
    return computed_together(layers, grid) if all(map(_leaves_bias, layers)) else [()] * len(blocks)


def _drop_path_factors(blocks: Sequence[Block], x: Tensor) -> Iterable[Tensor | None]:
    """Factors of the branches of each block, (2, B), drawn for all of them at once; None where nothing is dropped."""
    drops = [block.drop_path for block in blocks]
    dropped = [drop.drop_prob if isinstance(drop, DropPath) and drop.training else 0.0 for drop in drops]
    if not any(dropped):
        return [None] * len(blocks)
    keep = _keep_probabilities(tuple(dropped), x.device)
    return torch.bernoulli(keep.expand(-1, 2, len(x))) / keep


@cached_constant
def _keep_probabilities(dropped: tuple[float, ...], device: torch.device) -> Tensor:
    """One minus some probabilities, float32 (N, 1, 1)."""
    return 1 - torch.tensor(dropped, device=device)[:, None, None]


def _add_branch(
    x: Tensor,
    branch: nn.Module,
    normed: Tensor,
    next_norm: nn.LayerNorm,
    factor: Tensor | None,
    *of_parameters: Tensor,
) -> tuple[Tensor, Tensor]:
    """The sum of tokens and a branch, and its norm."""
    # A branch whose last layer has a bias may leave it to the kernel that adds the branch.
    if _leaves_bias(branch):
        output, bias = branch.without_last_bias(normed, *of_parameters)
    else:
        output, bias = branch(normed), None
    # The weights are copies in this dtype, except where activations are computed again.
    weights = [None if weight is None else weight.to(x.dtype) for weight in (next_norm.weight, next_norm.bias, bias)]
    return add_norm(x, output.to(x.dtype), *weights[:2], next_norm.eps, factor, weights[2])


def _leaves_bias(branch: nn.Module) -> bool:
    """Whether a branch has `without_last_bias`, of the class of its forward pass, and nothing looks at its calls."""
    owner = next((cls for cls in type(branch).__mro__ if 'without_last_bias' in vars(cls)), None)
    is_own = owner is not None and type(branch).forward is owner.forward and 'forward' not in vars(branch)
    return is_own and not has_hooks(branch)


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
