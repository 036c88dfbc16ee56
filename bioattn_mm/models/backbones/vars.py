"""VARS: Visual Attention Emerges from Recurrent Sparse Reconstruction (Shi et al., ICML 2022)."""

import numpy as np
import torch.nn.functional as F
from timm.layers import Mlp, to_2tuple
from torch import Tensor, nn

from ...errors import InputError
from ...layers import (
    ConvolutionalSparseReconstruction,
    PerformerAttention,
    PositionEmbedding,
    SoftmaxAttention,
    SparseReconstructionAttention,
)
from ...registry import MODELS
from .base import Backbone, Block, init_linear, run_block

DEPTH = 12
STRIDE = 16
STEM_CHANNELS = 32
MLP_RATIO = 4
ATTENTIONS = ('vars_s', 'vars_d', 'vars_sd', 'performer', 'softmax')
BLOCKS = ('rvt', 'deit', 'gfnet')


class TokenBatchNorm(nn.Module):
    """BatchNorm of tokens with the channels last.

    Not a subclass of BatchNorm, which a conversion to SyncBatchNorm would replace as a whole.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.bn(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ConvMlp(nn.Module):
    """RVT's second branch: 1 x 1, depth-wise 3 x 3 and 1 x 1 convolutions, each followed by BatchNorm.

    Args:
        channels: Input and output channels.
        hidden_channels: Channels of the depth-wise convolution.
    """

    def __init__(self, channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, hidden_channels, 1)
        self.bn1 = nn.BatchNorm2d(hidden_channels)
        self.dwconv = nn.Conv2d(hidden_channels, hidden_channels, 3, padding=1, groups=hidden_channels)
        self.bn2 = nn.BatchNorm2d(hidden_channels)
        self.fc2 = nn.Conv2d(hidden_channels, channels, 1)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        x = F.gelu(self.bn1(self.fc1(x.permute(0, 3, 1, 2))))
        x = F.gelu(self.bn2(self.dwconv(x)))
        return self.bn3(self.fc2(x)).permute(0, 2, 3, 1)


class SingleResidualBlock(Block):
    """GFNet's block: attention and MLP in one branch, `x + DropPath(mlp(norm(attn(norm(x)))))`."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return x + self.drop_path(self.mlp(self.norm2(self.attn(self.norm1(x)))))


@MODELS.register_module()
class VARS(Backbone):
    """Backbone of stride 16 (RVT-Ti: 16 and 32) whose attention reconstructs its input from few dictionary entries.

    Any input size: images are padded at the bottom and right to a multiple of 16 pixels, and static dictionaries
    are resized to the actual grid. All attentions but 'softmax' are linear in the number of tokens.

    The classifiers normalise the mean of the tokens, so that the last output is, like the others, what its block
    gives.

    Args:
        arch: The host. 'rvt-tiny' (10 blocks of width 192, then 2 of width 384 and stride 32) and 'rvt-small' (12
            blocks of width 384) are the authors' release. 'deit-tiny' and 'gfnet-tiny' are those of the paper's
            tables: RVT's convolutional stem, a position embedding and no class token, which a static dictionary has
            no place for. They are not in the release; their heads and numbers of random features are chosen here to
            give the paper's numbers of parameters with VARS-SD (5.8 M and 10.4 M, here 5.8 M and 10.5 M). A dict with
            `block` ('rvt', 'deit' or 'gfnet'), `depths`, `channels` and `num_heads` (lists, a value for each stride)
            and `feature_ratio` (random features for each channel of a head); 'vars_s' has no heads and features.
        attention: 'vars_s' (static dictionary), 'vars_d' (dynamic dictionary), 'vars_sd' (both), or the baselines
            'performer' and 'softmax'.
        num_steps: Steps of the recurrence after the first; the baselines have none.
        sparsity: Weight lambda of the L1 norm; None for the release's: 3.5 with 'vars_s', else 0.3.
        pretrain_size: Image size of the pre-training, int or (height, width) in pixels: the grid of the static
            dictionaries and of the position embedding.
        out_indices: Blocks (counted from 0) whose outputs are returned; None for the last of each stride with two
            strides, else for (3, 7, 9, 11). Blocks after the last of these are not built.
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        frozen_stages: Blocks up to and including this one are frozen, and the stem with them; -1 freezes none.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release as it is.

    Attributes:
        out_channels: Channels of each output.
    """

    arch_settings = {
        'rvt-tiny': dict(block='rvt', depths=[10, 2], channels=[192, 384], num_heads=[6, 12], feature_ratio=2),
        'rvt-small': dict(block='rvt', depths=[12], channels=[384], num_heads=[6], feature_ratio=2),
        'deit-tiny': dict(block='deit', depths=[12], channels=[192], num_heads=[6], feature_ratio=1),
        'gfnet-tiny': dict(block='gfnet', depths=[12], channels=[256], num_heads=[16], feature_ratio=2),
    }
    # With VARS-S, `kernel`, `v` and `proj` belong to the block, with VARS-SD to its attention.
    released_names = (
        (r'^patch_embed\.proj\.', 'stem.'),
        (r'^pools\.0\.conv\.', 'pool.'),
        (r'^(transformers\..*\.attn)\.kernel$', r'\1.static'),
        # Only RVT-Ti has a second stage, after 10 blocks.
        (r'^transformers\.(\d)\.blocks\.(\d+)\.', lambda m: f'blocks.{10 * int(m[1]) + int(m[2])}.'),
        (r'^(blocks\.\d+)\.(kernel|v|proj)\b', r'\1.attn.\2'),
        (r'^(blocks\.\d+)\.kernel2$', r'\1.attn.mix_kernel'),
        (r'\.norm1\.bn\.', '.attn.norm.'),
        (r'\.attn\.rand_matrix$', '.attn.features.projection'),
        (r'\.attn\.learned_k$', '.attn.gram_weight'),
        (r'\.attn\.learned_lam$', '.attn.sparsity_scale'),
        (r'\.attn\.learned_L$', '.attn.step_scale'),
    )

    def __init__(
        self,
        arch: str | dict = 'rvt-tiny',
        attention: str = 'vars_s',
        num_steps: int = 3,
        sparsity: float | None = None,
        pretrain_size: int | tuple[int, int] = 224,
        out_indices: tuple[int, ...] | None = None,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        frozen_stages: int = -1,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        depths = settings['depths']
        if out_indices is None:
            out_indices = (depths[0] - 1, DEPTH - 1) if len(depths) == 2 else (3, 7, 9, 11)
        super().__init__(DEPTH, out_indices, frozen_stages, init_cfg)
        if attention not in ATTENTIONS:
            raise InputError(f'attention must be one of {", ".join(ATTENTIONS)}, got {attention!r}')
        # Blocks from this one on have stride 32.
        self.pool_before = depths[0] if len(depths) == 2 else DEPTH
        levels = np.repeat(range(len(depths)), depths).tolist()
        self.out_channels = tuple(settings['channels'][levels[index]] for index in self.out_indices)
        self.with_cp = with_cp

        channels = settings['channels']
        grid = tuple(-(-size // STRIDE) for size in to_2tuple(pretrain_size))
        self.stem = nn.Sequential(
            nn.Conv2d(3, STEM_CHANNELS, 7, stride=2, padding=2),
            nn.BatchNorm2d(STEM_CHANNELS),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(STEM_CHANNELS, channels[0], 4, stride=4),
        )
        # RVT has no position embedding: the zero padding of its depth-wise convolutions tells positions.
        self.pos_embed = nn.Identity() if settings['block'] == 'rvt' else PositionEmbedding(channels[0], grid)
        # Blocks after the last output are not built: unused parameters break DistributedDataParallel.
        drop_path_rates = np.linspace(0, drop_path_rate, DEPTH)[: max(self.out_indices) + 1].tolist()
        self.blocks = nn.ModuleList()
        for level, rate in zip(levels, drop_path_rates):
            level_grid = grid if level == 0 else tuple(-(-length // 2) for length in grid)
            self.blocks.append(_block(settings, level, attention, level_grid, num_steps, sparsity, rate))
        if len(self.blocks) > self.pool_before:
            self.pool = nn.Conv2d(channels[0], channels[1], 3, stride=2, padding=1, groups=channels[0])
        self.apply(init_linear)
        self.train(self.training)

    def forward_features(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features after the blocks `out_indices`, of stride 16, with RVT-Ti also 32 (sizes rounded up)."""
        x = F.pad(x, (0, -x.shape[3] % STRIDE, 0, -x.shape[2] % STRIDE))
        x = self.pos_embed(self.stem(x).permute(0, 2, 3, 1))
        outputs = []
        for index, block in enumerate(self.blocks):
            if index == self.pool_before:
                x = self.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            x = run_block(block, x, self.with_cp)
            if index in self.out_indices:
                outputs.append(x.permute(0, 3, 1, 2).contiguous())
        return tuple(outputs)

    def stage_modules(self, stage: int) -> list[nn.Module]:
        first = [self.stem, self.pos_embed] if stage == 0 else []
        if stage == self.pool_before and len(self.blocks) > stage:
            first.append(self.pool)
        return [*first, *self.blocks[stage : stage + 1]]

    @classmethod
    def parse_arch(cls, arch: str | dict) -> dict:
        settings = super().parse_arch(arch)
        if settings['block'] not in BLOCKS:
            raise InputError(f'block of arch must be one of {", ".join(BLOCKS)}, got {settings["block"]!r}')
        depths, channels, num_heads = (settings[key] for key in ('depths', 'channels', 'num_heads'))
        if not len(depths) == len(channels) == len(num_heads) or len(depths) not in (1, 2) or sum(depths) != DEPTH:
            raise InputError(
                f'depths, channels and num_heads of arch must be lists of one or two values, depths of the sum '
                f'{DEPTH}, got {depths}, {channels} and {num_heads}'
            )
        if len(channels) == 2 and channels[1] % channels[0]:
            raise InputError(f'the second of channels of arch must be a multiple of the first, got {channels}')
        return settings


def _block(
    settings: dict,
    level: int,
    attention: str,
    grid: tuple[int, int],
    num_steps: int,
    sparsity: float | None,
    drop_path: float,
) -> Block:
    """A block of one of the hosts; `level` is 0 or 1, the place in the lists of the settings."""
    channels, num_heads = settings['channels'][level], settings['num_heads'][level]
    feature_ratio = settings['feature_ratio']
    # Without a `sparsity` the layer takes its own default.
    recurrence = dict(num_steps=num_steps) if sparsity is None else dict(num_steps=num_steps, sparsity=sparsity)
    if attention == 'softmax':
        attn = SoftmaxAttention(channels, num_heads)
    elif attention == 'performer':
        attn = PerformerAttention(channels, num_heads, feature_ratio)
    elif attention == 'vars_s':
        attn = ConvolutionalSparseReconstruction(channels, grid, **recurrence)
    else:
        static_grid = grid if attention == 'vars_sd' else None
        attn = SparseReconstructionAttention(
            channels, num_heads, static_grid, feature_ratio=feature_ratio, **recurrence
        )

    hidden_channels = MLP_RATIO * channels
    mlp = ConvMlp(channels, hidden_channels) if settings['block'] == 'rvt' else Mlp(channels, hidden_channels)
    block_type = SingleResidualBlock if settings['block'] == 'gfnet' else Block
    block = block_type(channels, attn, mlp, drop_path)
    if attention == 'vars_s':
        # Its input is not normalised, and BatchNorm takes the place of LayerNorm.
        block.norm1 = nn.Identity()
        block.norm2 = TokenBatchNorm(channels)
    return block
