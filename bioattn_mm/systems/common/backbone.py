"""What all backbones share: checkpoints, frozen stages, layer depths, analysis, checks of arguments.

A new backbone subclasses `PlainBackbone` (one stride) or `HierarchicalBackbone` (stages of growing stride) and says
in its own file everything that the rest of the package needs to know of it; see docs/adding_a_backbone.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...checkpoints import Release, convert_channels, fit_classifier, load_backbone
from ...errors import InputError
from .attention_maps import AttentionMaps, Recording
from .blocks import run_block
from .hooks import is_eager
from .layout import Grid, as_map

MIN_INPUT_SIZE = 32


def in_network_order(out_indices: Sequence[int], number: int) -> tuple[int, ...]:
    """The indices of the outputs of a network of so many, in the order in which it gives them, each once."""
    return tuple(sorted({index + number if index < 0 else index for index in out_indices}))


def check_images(x: Tensor, in_channels: int) -> None:
    """Raise an `InputError` unless `x` is (B, in_channels, H, W) with H, W >= 32."""
    if x.dim() != 4 or x.shape[1] != in_channels or min(x.shape[2:]) < MIN_INPUT_SIZE:
        raise InputError(
            f'expected an input of (B, {in_channels}, H, W) with H and W of at least {MIN_INPUT_SIZE} pixels, '
            f'got {tuple(x.shape)}'
        )


class Backbone(BaseModule):
    """Base of the backbones: (B, 3, H, W) to a tuple of feature maps (B, C_i, H_i, W_i), for any H, W >= 32.

    Stages are counted from 0; in a plain backbone every block is a stage of its own.

    Args:
        num_stages: Number of stages.
        out_indices: Stages whose outputs are returned, in the order of the network; negative ones from the last.
        frozen_stages: Stages up to and including this one, and what comes before them, get no gradients and stay in
            eval mode; -1 freezes none.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release, or one of this
            package, as it is; FILE may be a URL, or `hf://OWNER/NAME/FILE` of a Hugging Face repository. Other values
            are mmengine's.
        in_channels: Channels of the images. Weights for three are converted as timm does: summed for one channel,
            else repeated in turn and scaled by 3 / in_channels.

    Attributes:
        arch_settings: Variants by name; a dict given as `arch` must have the same keys.
        arch_defaults: Values of more keys, which variants and dicts may leave out.
        release: How the files that the authors released differ from the backbone's own state dict.
        no_weight_decay: Parts of names of parameters that are not decayed, besides biases and norms.
        stage_channels: Channels of the output of each stage, of all that the network has.
        stage_strides: Strides of these outputs, in pixels.
        out_channels: Channels of each output.
        exports_any_size: Whether `torch.export` makes a graph for any input size of it, besides those for one size,
            and `--compile` asks for one.
        loaded_weights: The file that `init_weights` loaded and how well it fitted, for the log.
    """

    arch_settings: dict[str, dict]
    arch_defaults: dict[str, object] = {}
    release: Release = Release()
    no_weight_decay: tuple[str, ...] = ()
    exports_any_size: bool = True
    loaded_weights: str | None = None

    def __init__(
        self,
        num_stages: int,
        out_indices: tuple[int, ...],
        frozen_stages: int = -1,
        init_cfg: dict | list | None = None,
        in_channels: int = 3,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if not isinstance(in_channels, int) or in_channels < 1:
            raise InputError(
                f'in_channels must be the number of channels of the images, 1 or more, got {in_channels}'
            )
        self.in_channels = in_channels
        self.out_indices = in_network_order(out_indices, num_stages)
        if not self.out_indices or not set(self.out_indices) <= set(range(num_stages)):
            raise InputError(f'out_indices must be stages 0 to {num_stages - 1}, got {out_indices}')
        if not -1 <= frozen_stages < num_stages:
            raise InputError(f'frozen_stages must be -1 to {num_stages - 1}, got {frozen_stages}')
        self.frozen_stages = frozen_stages

    @classmethod
    def parse_arch(cls, arch: str | dict) -> dict:
        """Return the settings of a variant; a dict is checked for the keys and lengths of `arch_settings`."""
        variants = cls.arch_settings
        if isinstance(arch, str):
            if arch not in variants:
                raise InputError(f'arch must be one of {", ".join(variants)} or a dict, got {arch!r}')
            return {**cls.arch_defaults, **variants[arch]}
        first = next(iter(variants.values()))
        settings = {**cls.arch_defaults, **arch}
        if set(settings) != {*first, *cls.arch_defaults}:
            raise InputError(f'arch as a dict needs the keys {", ".join(sorted(first))}, got {arch}')
        for key, value in {**cls.arch_defaults, **first}.items():
            if isinstance(value, tuple) and len(settings[key]) != len(value):
                raise InputError(f'{key} of arch needs {len(value)} values, got {settings[key]}')
        return settings

    def set_stages(self, channels: Iterable[int], strides: Iterable[int]) -> None:
        """Set `stage_channels` and `stage_strides`, and the channels of the outputs."""
        self.stage_channels, self.stage_strides = tuple(channels), tuple(strides)
        self.out_channels = tuple(self.stage_channels[index] for index in self.out_indices)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) to (B, C_i, H_i, W_i) for each of `out_indices`; (B, C_i) where `out_type` says so.

        Raises:
            InputError: The input has another shape or is too small.
        """
        check_images(x, self.in_channels)
        return tuple(
            self.as_output(index, tokens, grid)
            for index, (tokens, grid) in enumerate(self.iterate_stages(x))
            if index in self.out_indices
        )

    def iterate_stages(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """What each stage gives to the next: tokens, (B, H', W', C) or ([1 +] H' * W', C), and their grid."""
        raise NotImplementedError

    def as_output(self, stage: int, tokens: Tensor, grid: Grid) -> Tensor:
        """Tokens of a stage as its output has them before pooling: normalised, and a map, (B, C, H', W')."""
        return as_map(tokens, grid)

    def forward_unpooled(self, x: Tensor) -> Tensor:
        """What a classifier pools: the map of the last of `out_indices`, (B, C, H, W), for (B, 3, H, W)."""
        return Backbone.forward(self, x)[-1]

    def pool_features(self, x: Tensor) -> Tensor:
        """Pool what `forward_unpooled` returns for a classifier: (B, C)."""
        return x.mean((2, 3))

    @property
    def first_conv(self) -> str:
        """Name of the convolution that takes the images."""
        return next(name for name, module in self.named_modules() if isinstance(module, nn.Conv2d))

    def block_modules(self) -> list[nn.Module]:
        """The transformer blocks, in the order in which they run; FSDP shards each as a unit."""
        raise NotImplementedError

    def stage_modules(self, stage: int) -> list[nn.Module]:
        """The modules that `frozen_stages` freezes with this stage."""
        raise NotImplementedError

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Depth of a parameter, and the number of depths, for layer-wise learning rates; as in mmpretrain.

        Args:
            param_name: Name of the parameter, with the prefix.
            prefix: What comes before the names of the backbone's own parameters, such as 'backbone.'.
        """
        num_layers = len(self.block_modules()) + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        return self._depth_of(param_name.removeprefix(prefix)), num_layers

    def _depth_of(self, name: str) -> int:
        """0 before the first block, n for the n-th block, one more after the last."""
        raise NotImplementedError

    def attention_layers(self) -> dict[str, nn.Module]:
        """Attention layers that analysis can look into, by their names; by default the `attn` of each block."""
        names = {module: name for name, module in self.named_modules()}
        return {names[block.attn]: block.attn for block in self.block_modules()}

    def attention_maps(self, recording: Recording, queries: Tensor) -> AttentionMaps:
        """Attention weights of some tokens in one of the `attention_layers`, by default by its own method."""
        return recording.layer.attention_maps(*recording.inputs, **recording.keywords, queries=queries)

    def init_weights(self) -> None:
        """Load the checkpoint of `init_cfg`; log which of its entries were not used, and what it lacks."""
        if not (isinstance(self.init_cfg, dict) and self.init_cfg.get('type') == 'Pretrained'):
            super().init_weights()
            return
        path = self.init_cfg['checkpoint']
        match = load_backbone(self, path, self.init_cfg.get('prefix', ''))
        self._is_init = True
        self._log_loading(f'{path}; {match}')

    def _checkpoint_filter(self, state_dict: dict, prefix: str, *args) -> None:
        """Give the entries of the authors' classifier the names of the `ImageClassifier` that has this backbone.

        mmpretrain's `ImageClassifier` calls this, by this name, before it loads a checkpoint, which is changed in
        place. Its head must be a `LinearClsHead`. Its own checkpoints keep all but the number of channels.
        """
        if prefix or not state_dict:
            return
        if any(name.startswith('backbone.') for name in state_dict):
            first = f'backbone.{self.first_conv}.weight'
            if first in state_dict:
                state_dict[first] = convert_channels('the file', state_dict[first], self.in_channels)
            return
        match = fit_classifier(self, 'the file', state_dict)
        own = self.state_dict()
        kept = {f'backbone.{name}': own[name] for name in match.kept}
        state_dict.clear()
        state_dict.update(match.weights | kept)
        self._log_loading(f'a whole classifier of the authors; {match}')

    def _log_loading(self, loaded_weights: str) -> None:
        self.loaded_weights = loaded_weights
        print_log(f'{type(self).__name__}: loaded {loaded_weights}', logger='current')

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        for stage in range(self.frozen_stages + 1):
            for module in self.stage_modules(stage):
                module.eval()
                module.requires_grad_(False)
        return self


class HierarchicalBackbone(Backbone):
    """Base of backbones whose `stages` have `blocks` each."""

    def block_modules(self) -> list[nn.Module]:
        return [block for stage in self.stages for block in stage.blocks]

    def _depth_of(self, name: str) -> int:
        if not name.startswith('stages.'):
            return 0 if name.startswith('patch_embed.') else len(self.block_modules()) + 1
        _, stage, module, index, *_ = name.split('.')
        blocks_before = sum(len(stage.blocks) for stage in self.stages[: int(stage)])
        if module == 'blocks':
            return blocks_before + int(index) + 1
        if module == 'patch_embed':  # before the stage's blocks
            return blocks_before + 1 if int(stage) else 0
        return blocks_before + len(self.stages[int(stage)].blocks)


class PlainBackbone(Backbone):
    """Base of backbones that are one sequence of blocks on a grid of tokens, each a stage of its own.

    Blocks after the last output are not built: unused parameters break DistributedDataParallel. A subclass sets
    `blocks`, `num_built` of them, and may set `norm`, which is applied to the tokens of the last block alone, or
    `fc_norm`, which is applied to their mean. Arguments that are not listed are those of `Backbone`.

    Args:
        num_layers: Number of blocks of the whole network.
        with_cp: Recompute each block's activations in the backward pass to save memory.
        out_type: What is returned of a block, by mmpretrain's names: 'featmap', its map, (B, C, H, W); for a
            classifier 'avg_featmap', the mean of its tokens, (B, C), or 'cls_token', its class token, (B, C).

    Attributes:
        out_types: The values of `out_type` that the backbone takes.
    """

    out_types: tuple[str, ...] = ('featmap', 'avg_featmap')

    def __init__(
        self,
        num_layers: int,
        out_indices: tuple[int, ...],
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list | None = None,
        out_type: str = 'featmap',
        in_channels: int = 3,
    ) -> None:
        super().__init__(num_layers, out_indices, frozen_stages, init_cfg, in_channels)
        if out_type not in self.out_types:
            raise InputError(f'out_type must be one of {", ".join(self.out_types)}, got {out_type!r}')
        self.out_type = out_type
        self.num_layers = num_layers
        self.num_built = max(self.out_indices) + 1
        self.with_cp = with_cp
        self.norm = nn.Identity()
        self.fc_norm = nn.Identity()

    def drop_path_rates(self, last: float) -> list[float]:
        """Stochastic depth of each block that is built: from 0, linearly, to `last` in the network's last block."""
        return np.linspace(0, last, self.num_layers)[: self.num_built].tolist()

    def final_norm(self, embed_dims: int) -> nn.Module:
        """LayerNorm for the output of the last block, or nothing if that block is not built."""
        return nn.LayerNorm(embed_dims, eps=1e-6) if self.num_built == self.num_layers else nn.Identity()

    def pooled_norm(self, embed_dims: int) -> nn.Module:
        """LayerNorm for the mean of the last block's tokens, or nothing if that is not an output."""
        return self.final_norm(embed_dims) if self.out_type == 'avg_featmap' else nn.Identity()

    def embed(self, x: Tensor) -> Tensor:
        """Turn images, (B, 3, H, W), into a grid of tokens, (B, H', W', C)."""
        raise NotImplementedError

    def before_block(self, x: Tensor, index: int) -> Tensor:
        """Change the tokens before block `index`: insert a class token, or halve the grid. By default unchanged."""
        return x

    def arguments_of_blocks(self, x: Tensor, at_once: bool) -> Iterable[tuple]:
        """What each block takes after its tokens, given those of the first: by default nothing.

        `at_once` is true with gradients where nothing looks into the model. What depends on parameters and the grid
        alone may then be computed here for all blocks, where a GPU would wait for the launches of each.
        """
        return repeat(())

    def iterate_stages(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        x = self.embed(x)
        grid = x.shape[1:3]
        of_blocks = self.arguments_of_blocks(x, torch.is_grad_enabled() and is_eager(x))
        for index, (block, arguments) in enumerate(zip(self.blocks, of_blocks)):
            x = self.before_block(x, index)
            if x.ndim == 4:  # a class token leaves the grid as it was
                grid = x.shape[1:3]
            x = run_block(block, x, self.with_cp, *arguments)
            yield x, grid

    def as_output(self, stage: int, tokens: Tensor, grid: Grid) -> Tensor:
        tokens = self.norm(tokens) if stage == self.num_layers - 1 else tokens
        return tokens if self.out_type == 'cls_token' else as_map(tokens, grid)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        outputs = super().forward(x)
        if self.out_type == 'featmap':
            return outputs
        *others, last = outputs
        return *(self._pool(output) for output in others), self.pool_features(last)

    def pool_features(self, x: Tensor) -> Tensor:
        return self.fc_norm(self._pool(x))

    def _pool(self, x: Tensor) -> Tensor:
        return x[:, 0] if self.out_type == 'cls_token' else x.mean((2, 3))

    def embedding_modules(self) -> list[nn.Module]:
        """What comes before the first block, and is frozen with it: by default all modules of depth 0."""
        others = (child for child in self.named_children() if child[0] != 'blocks')
        return [module for name, module in others if self._depth_of(f'{name}.') == 0]

    def stage_modules(self, stage: int) -> list[nn.Module]:
        return [*(self.embedding_modules() if stage == 0 else ()), *self.blocks[stage : stage + 1]]

    def block_modules(self) -> list[nn.Module]:
        return list(self.blocks)

    def _depth_of(self, name: str) -> int:
        module, _, rest = name.partition('.')
        if module == 'blocks':
            return int(rest.partition('.')[0]) + 1
        return self.num_built + 1 if module in ('norm', 'fc_norm') else 0
