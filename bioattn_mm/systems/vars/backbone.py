"""VARS: Visual Attention Emerges from Recurrent Sparse Reconstruction (Shi et al., ICML 2022)."""

import numpy as np
import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from torch import Tensor, nn

from ...checkpoints import Release
from ...errors import InputError
from ...registry import MODELS
from ..common.backbone import PlainBackbone
from ..common.blocks import Block, FeedForward, PositionEmbedding, SoftmaxAttention, pad_to_patches, through
from ..common.building import build_layer
from .attention import ConvolutionalSparseReconstruction, SparseReconstructionAttention
from .baselines import GlobalFilter, PerformerAttention

STRIDE = 16
STEM_CHANNELS = 32
MLP_RATIO = 4
# The attentions of the paper's tables by their names.
ATTENTIONS = {
    'vars_s': dict(type=ConvolutionalSparseReconstruction),
    'vars_d': dict(type=SparseReconstructionAttention, static_grid=None),
    'vars_sd': dict(type=SparseReconstructionAttention),
    'performer': dict(type=PerformerAttention),
    'softmax': dict(type=SoftmaxAttention),
    'global_filter': dict(type=GlobalFilter),
}


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm of maps; what is usual skips PyTorch's checks, which are half of its calls."""

    def forward(self, x: Tensor) -> Tensor:
        is_usual = self.momentum and self.track_running_stats
        if not is_usual or (self.training and x.shape[0] * x.shape[2] * x.shape[3] < 2):
            return super().forward(x)
        buffers = self._buffers
        if self.training:
            buffers['num_batches_tracked'].add_(1)
        tensors = self.weight, self.bias, buffers['running_mean'], buffers['running_var']
        with_cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(x, *tensors, self.training, self.momentum, self.eps, with_cudnn)


class TokenBatchNorm(nn.Module):
    """BatchNorm of tokens (B, H, W, C); it is no subclass, which converting the model to SyncBatchNorm replaces."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ConvMlp(nn.Module):
    """RVT's second branch: 1 x 1, depth-wise 3 x 3 and 1 x 1 convolutions, each followed by BatchNorm."""

    def __init__(self, channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, hidden_channels, 1)
        self.bn1 = BatchNorm(hidden_channels)
        self.dwconv = nn.Conv2d(hidden_channels, hidden_channels, 3, padding=1, groups=hidden_channels)
        self.bn2 = BatchNorm(hidden_channels)
        self.fc2 = nn.Conv2d(hidden_channels, channels, 1)
        self.bn3 = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        x = F.gelu(self.bn1(self.fc1(x.permute(0, 3, 1, 2))))
        x = F.gelu(self.bn2(self.dwconv(x)))
        return self.bn3(self.fc2(x)).permute(0, 2, 3, 1)


class SingleResidualBlock(Block):
    """GFNet's block: attention and MLP in one branch, `x + DropPath(mlp(norm(attn(norm(x)))))`."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return x + through(self.drop_path, self.mlp(self.norm2(self.attn(self.norm1(x)))))


BLOCKS = {'rvt': Block, 'deit': Block, 'gfnet': SingleResidualBlock}


@MODELS.register_module()
class VARS(PlainBackbone):
    """Backbone of stride 16 (RVT-Ti: 16 and 32) whose attention is a sparse reconstruction of its input.

    Static dictionaries are resized to the grid of the image. There is no final LayerNorm of the tokens: the
    classifier normalises their mean. Linear layers start with PyTorch's initial values, as in the release.

    Args:
        arch: The host: 'rvt-tiny' (10 blocks of width 192, then 2 of width 384 and stride 32) and 'rvt-small', those
            of the authors' release; 'deit-tiny' and 'gfnet-tiny', those of the paper's tables, with RVT's stem, a
            position embedding, no class token, and heads and features chosen for the paper's parameters with VARS-SD;
            or a dict with `block` ('rvt', 'deit' or 'gfnet'), `embed_dims`, `depths` and `num_heads` (lists, a value
            per stride) and `feature_ratio` (random features for each channel of a head).
        attention: 'vars_s' (static dictionary), 'vars_d' (dynamic dictionary), 'vars_sd' (both), or the baselines
            'performer', 'softmax' and 'global_filter', which is GFNet's own. A dict names another layer:
            `dict(type='bioattn_mm.IstaReconstructionAttention')`, with `static_grid=None` for VARS-D.
        num_steps: Steps of the recurrence after the first; the baselines have none.
        sparsity: Weight lambda of the L1 norm; None for the layer's, the paper's 0.3. The release has 3.5 in VARS-S.
        threshold: 'soft', the proximal operator of the L1 norm, or 'gelu', a smooth version; None for the release's:
            'soft' with 'vars_s', else 'gelu'.
        num_kernels: Kernels of each channel in the dictionary of 'vars_s'; 5 in the release, 3 in the paper.
        pretrain_size: Image size, int or (height, width), of the static dictionaries and the position embedding.
        out_indices: As in `PlainBackbone`; None for the last block of each stride with two strides, else for
            (3, 7, 9, 11).
        drop_path_rate: Stochastic depth of the last block; it rises linearly from 0.

    The other arguments are those of `PlainBackbone`; 'avg_featmap' is normalised.
    """

    arch_settings = {
        'rvt-tiny': dict(block='rvt', embed_dims=[192, 384], depths=[10, 2], num_heads=[6, 12], feature_ratio=2),
        'rvt-small': dict(block='rvt', embed_dims=[384], depths=[12], num_heads=[6], feature_ratio=2),
        'deit-tiny': dict(block='deit', embed_dims=[192], depths=[12], num_heads=[6], feature_ratio=1),
        'gfnet-tiny': dict(block='gfnet', embed_dims=[256], depths=[12], num_heads=[16], feature_ratio=2),
    }
    # `kernel`, `v` and `proj` belong to the block in VARS-S, and to its attention in VARS-SD.
    release = Release(
        names=(
            (r'^patch_embed\.proj\.', 'stem.'),
            (r'^norm\.', 'fc_norm.'),
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
    )
    no_weight_decay = ('pos_embed',)

    def __init__(
        self,
        arch: str | dict = 'rvt-tiny',
        attention: str | dict = 'vars_s',
        num_steps: int = 3,
        sparsity: float | None = None,
        threshold: str | None = None,
        num_kernels: int = 5,
        pretrain_size: int | tuple[int, int] = 224,
        out_indices: tuple[int, ...] | None = None,
        out_type: str = 'featmap',
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        frozen_stages: int = -1,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
    ) -> None:
        settings = self.parse_arch(arch)
        embed_dims, depths = settings['embed_dims'], settings['depths']
        num_layers = sum(depths)
        if out_indices is None:
            out_indices = (depths[0] - 1, num_layers - 1) if len(depths) == 2 else (3, 7, 9, 11)
        super().__init__(num_layers, out_indices, frozen_stages, with_cp, init_cfg, out_type, in_channels)
        if isinstance(attention, str):
            if attention not in ATTENTIONS:
                raise InputError(f'attention must be one of {", ".join(ATTENTIONS)} or a dict, got {attention!r}')
            attention = ATTENTIONS[attention]
        # Blocks from this one on have stride 32.
        self.pool_before = depths[0]
        levels = np.repeat(range(len(depths)), depths).tolist()
        self.set_stages((embed_dims[level] for level in levels), (STRIDE * 2**level for level in levels))

        grid = tuple(-(-size // STRIDE) for size in to_2tuple(pretrain_size))
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, STEM_CHANNELS, 7, stride=2, padding=2),
            nn.BatchNorm2d(STEM_CHANNELS),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(STEM_CHANNELS, embed_dims[0], 4, stride=4),
        )
        # RVT has no position embedding: the zero padding of its depth-wise convolutions tells positions.
        self.pos_embed = nn.Identity() if settings['block'] == 'rvt' else PositionEmbedding(embed_dims[0], grid)
        known = dict(num_steps=num_steps, sparsity=sparsity, threshold=threshold, num_kernels=num_kernels)
        self.blocks = nn.ModuleList()
        for level, rate in zip(levels, self.drop_path_rates(drop_path_rate)):
            channels = embed_dims[level]
            known['grid'] = known['static_grid'] = tuple(-(-length // 2**level) for length in grid)
            known.update(num_heads=settings['num_heads'][level], feature_ratio=settings['feature_ratio'])
            attn = build_layer(attention, embed_dims=channels, **known)
            mlp = (ConvMlp if settings['block'] == 'rvt' else FeedForward)(channels, MLP_RATIO * channels)
            block = BLOCKS[settings['block']](channels, attn, mlp, rate)
            if isinstance(attn, ConvolutionalSparseReconstruction):
                # Its input is not normalised, and BatchNorm takes the place of LayerNorm.
                block.norm1, block.norm2 = nn.Identity(), TokenBatchNorm(channels)
            self.blocks.append(block)
        if self.num_built > self.pool_before:
            self.pool = nn.Conv2d(embed_dims[0], embed_dims[1], 3, stride=2, padding=1, groups=embed_dims[0])
        self.fc_norm = self.pooled_norm(embed_dims[-1])
        self.train(self.training)

    def embed(self, x: Tensor) -> Tensor:
        return self.pos_embed(self.stem(pad_to_patches(x, STRIDE)).permute(0, 2, 3, 1))

    def before_block(self, x: Tensor, index: int) -> Tensor:
        """Halve the grid before the first block of stride 32."""
        if index != self.pool_before:
            return x
        return self.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def stage_modules(self, stage: int) -> list[nn.Module]:
        pool = [self.pool] if stage == self.pool_before and hasattr(self, 'pool') else []
        return [*pool, *super().stage_modules(stage)]

    def _depth_of(self, name: str) -> int:
        return self.pool_before + 1 if name.startswith('pool.') else super()._depth_of(name)

    @classmethod
    def parse_arch(cls, arch: str | dict) -> dict:
        settings = super().parse_arch(arch)
        if settings['block'] not in BLOCKS:
            raise InputError(f'block of arch must be one of {", ".join(BLOCKS)}, got {settings["block"]!r}')
        embed_dims, depths, num_heads = (settings[key] for key in ('embed_dims', 'depths', 'num_heads'))
        if not len(embed_dims) == len(depths) == len(num_heads) or len(depths) not in (1, 2):
            raise InputError(
                'embed_dims, depths and num_heads of arch must be lists of one or two values, one per stride, got '
                f'{embed_dims}, {depths} and {num_heads}'
            )
        return settings
