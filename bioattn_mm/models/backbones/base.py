"""What all backbones share: blocks, checkpoints, frozen stages, checks of arguments and input."""

import re
from collections.abc import Callable

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from timm.layers import DropPath, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...checkpoints import load_backbone
from ...errors import InputError

MIN_INPUT_SIZE = 32


class Block(nn.Module):
    """Pre-norm transformer block: `x + DropPath(attn(LN(x)))`, then `x + DropPath(mlp(LN(x)))`.

    Args:
        channels: Input and output channels.
        attn: Attention; its input has the shape of the block's.
        mlp: The second branch, the same.
        drop_path: Probability to leave a branch out in training.
    """

    def __init__(self, channels: int, attn: nn.Module, mlp: nn.Module, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attn = attn
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
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


def init_linear(module: nn.Module) -> None:
    """Initial values of a linear layer, the same in every backbone; other modules stay as they are."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Backbone(BaseModule):
    """Base of the backbones: (B, 3, H, W) to a tuple of (B, C_i, H_i, W_i), for any H, W >= 32.

    Stages are counted from 0; in a plain backbone every block is a stage of its own.

    Args:
        num_stages: Stages there are.
        out_indices: Stages whose outputs are returned.
        frozen_stages: Stages up to and including this one, and what comes before them, get no gradients and stay in
            eval mode; -1 freezes none.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release, or one of this
            package, as it is. Other values are mmengine's.
    """

    # Variants by name: what `arch` may be, and the settings that a dict in its place must have.
    arch_settings: dict[str, dict]
    # Names in the authors' released files -> names here: regular expressions and replacements, applied in order.
    released_names: tuple[tuple[str, str | Callable[[re.Match], str]], ...] = ()
    # Values in the released files -> values here, by a regular expression of the name in the file.
    released_values: dict[str, Callable[[Tensor], Tensor]] = {}
    # Names of parameters and buffers, as regular expressions, that a checkpoint may lack.
    optional_weights: tuple[str, ...] = ()
    # The file that `init_weights` loaded, which of its entries were not used, and what it lacks.
    loaded_weights: str | None = None

    def __init__(
        self,
        num_stages: int,
        out_indices: tuple[int, ...],
        frozen_stages: int = -1,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if not out_indices or not set(out_indices) <= set(range(num_stages)):
            raise InputError(f'out_indices must be stages 0 to {num_stages - 1}, got {out_indices}')
        if not -1 <= frozen_stages < num_stages:
            raise InputError(f'frozen_stages must be -1 to {num_stages - 1}, got {frozen_stages}')
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages

    @classmethod
    def parse_arch(cls, arch: str | dict) -> dict:
        """The settings of a variant; a dict is checked for the keys and lengths that the variants have."""
        variants = cls.arch_settings
        if isinstance(arch, str):
            if arch not in variants:
                raise InputError(f'arch must be one of {", ".join(variants)} or a dict, got {arch!r}')
            return variants[arch]
        expected = next(iter(variants.values()))
        if set(arch) != set(expected):
            raise InputError(f'arch as a dict needs the keys {", ".join(sorted(expected))}, got {arch}')
        for key, value in expected.items():
            if isinstance(value, tuple) and len(arch[key]) != len(value):
                raise InputError(f'{key} of arch needs {len(value)} values, got {arch[key]}')
        return arch

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features of the stages `out_indices`.

        Args:
            x: Image, (B, 3, H, W) with H, W >= 32.

        Returns:
            (B, C_i, H_i, W_i) for each of `out_indices`.

        Raises:
            InputError: The input has another shape or is too small.
        """
        self.check_input(x)
        return self.forward_features(x)

    def forward_features(self, x: Tensor) -> tuple[Tensor, ...]:
        """What `forward` returns for an input of the right shape."""
        raise NotImplementedError

    def stage_modules(self, stage: int) -> list[nn.Module]:
        """The modules that `frozen_stages` freezes with this stage."""
        raise NotImplementedError

    def init_weights(self) -> None:
        """Load the checkpoint of `init_cfg`; log which of its entries were not used, and what it lacks."""
        if not (isinstance(self.init_cfg, dict) and self.init_cfg.get('type') == 'Pretrained'):
            super().init_weights()
            return
        path = self.init_cfg['checkpoint']
        unused, kept = load_backbone(self, path, self.init_cfg.get('prefix', ''))
        self._is_init = True
        note = f'{len(self.state_dict()) - len(kept)} entries used, '
        note += f'not used: {", ".join(unused)}' if unused else 'which are all of the file'
        if kept:
            note += f'; not in the file and left at their initial values: {", ".join(kept)}'
        self.loaded_weights = f'{path}; {note}'
        print_log(f'{type(self).__name__}: loaded {self.loaded_weights}', logger='current')

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        for stage in range(self.frozen_stages + 1):
            for module in self.stage_modules(stage):
                module.eval()
                module.requires_grad_(False)
        return self

    @staticmethod
    def check_input(x: Tensor) -> None:
        """Raise an `InputError` unless `x` is (B, 3, H, W) with H, W >= 32."""
        if x.dim() != 4 or x.shape[1] != 3 or min(x.shape[2:]) < MIN_INPUT_SIZE:
            raise InputError(
                f'expected an input of (B, 3, H, W) with H and W of at least {MIN_INPUT_SIZE} pixels, '
                f'got {tuple(x.shape)}'
            )
