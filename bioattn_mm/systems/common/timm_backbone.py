"""Any backbone of timm in detectors and segmentors: a feature pyramid, or the maps of a plain ViT at any size."""

import math
from collections.abc import Sequence

import timm
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModule
from timm.layers import Format
from timm.models import FeatureInfo, group_parameters
from torch import Tensor, nn

from ...checkpoints import check_fit, read_state_dict
from ...errors import InputError
from ...registry import MODELS
from .backbone import in_network_order
from .blocks import pad_to_patches

# Arguments by which models of fixed size take others; the first that a model knows is set.
ANY_SIZE = (dict(dynamic_img_size=True), dict(strict_img_size=False), {})
# A checkpoint of this scheme stands for the weights that timm has of the model.
FROM_TIMM = 'timm://'
PYRAMID_STRIDES = (4, 8, 16, 32)


@MODELS.register_module()
class TimmBackbone(BaseModule):
    """A model of timm without its classifier: (B, in_channels, H, W) to a tuple of maps, (B, C_i, H_i, W_i).

    Images of any size: they are padded with zeros at the bottom and right to whole patches, the position embedding is
    resized by timm, and maps are cropped to H_i = H / stride, rounded up. Patches whose size is no power of two get
    the nearest one as their stride: for those of DINOv2, of 14 pixels, images are resized by 14 / 16. BEiT, MaxViT
    and Hiera take images of the size that they are built for alone.

    Args:
        model_name: Name of the model, with or without the tag of its weights: 'vit_small_patch14_dinov2.lvd142m'.
        out_indices: What is returned: entries of timm's `feature_info`, in plain models blocks, counted from 0;
            negative ones count from the last. None for the strides 4 to 32 of a pyramid, as far as it has them, and
            for four blocks at equal distances of a plain model.
        frozen_stages: As in `Backbone`; in plain models stages are blocks.
        with_cp: Compute activations again in the backward pass to save memory.
        in_channels: Channels of the images; timm converts weights of three.
        init_cfg: `dict(type='Pretrained', checkpoint='timm://')` takes timm's weights, fetched when a training
            starts, `checkpoint=FILE` a file of them, or one with this backbone. Other values are mmengine's.
        **kwargs: Passed to `timm.create_model`, such as `drop_path_rate`.

    Attributes:
        out_channels: Channels of each output.
        out_strides: Strides of the outputs in pixels.
        is_plain: Whether all maps of the model have one stride.
        no_weight_decay: Names of the parameters here that timm does not decay, besides biases and norms.
    """

    def __init__(
        self,
        model_name: str,
        out_indices: Sequence[int] | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        in_channels: int = 3,
        init_cfg: dict | list | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.model_name = model_name
        self.frozen_stages = frozen_stages
        self._settings = dict(in_chans=in_channels, **kwargs)
        whole = self._create(pretrained=False, num_classes=0)
        info = getattr(whole, 'feature_info', None)
        if not info:
            raise InputError(f"timm's {model_name} has no feature_info: it gives no maps")
        info = list(info.info if isinstance(info, FeatureInfo) else info)
        strides = [entry['reduction'] for entry in info]
        self.is_plain = len(set(strides)) == 1
        if out_indices is None:
            out_indices = _default_indices(strides, self.is_plain)
        indices = in_network_order(out_indices, len(info))
        if not indices or not set(indices) <= set(range(len(info))):
            raise InputError(f'out_indices must be 0 to {len(info) - 1} for {model_name}, got {tuple(out_indices)}')
        if not -1 <= frozen_stages < len(info):
            raise InputError(f'frozen_stages must be -1 to {len(info) - 1} for {model_name}, got {frozen_stages}')
        if frozen_stages >= 0 and not hasattr(whole, 'group_matcher'):
            raise InputError(
                f"timm's {model_name} has no group_matcher, by which stages are frozen: frozen_stages=-1"
            )
        self.out_indices = indices
        self.out_channels = tuple(info[index]['num_chs'] for index in indices)
        # The patch size of a plain model, and what it stands for.
        self._patch = strides[0]
        self._stride = 2 ** round(math.log2(strides[0])) if self.is_plain else max(strides)
        self.out_strides = tuple(self._stride if self.is_plain else strides[index] for index in indices)

        # Names of the parameters have other separators in the models that timm cuts into their parts.
        self._depths = _depths(whole, coarse=False)
        self._stages = _depths(whole, coarse=not self.is_plain)
        # The last group of the stage that is frozen; what comes before the first one is group 0.
        frozen = f'{_name(info[frozen_stages]["module"])}_'
        self._last_frozen = max((depth for n, depth in self._stages.items() if n.startswith(frozen)), default=0)
        no_decay = whole.no_weight_decay() if hasattr(whole, 'no_weight_decay') else ()
        self.no_weight_decay = {f'model.{name}' for name in no_decay}
        self.model = self._cut(whole)
        if with_cp:
            self.model.set_grad_checkpointing()
        self.train(self.training)

    def _create(self, **options) -> nn.Module:
        """The model of timm with the first of `ANY_SIZE` that it knows."""
        if not timm.is_model(self.model_name.split('.')[0]):
            close = timm.list_models(f'*{self.model_name.split(".")[0]}*')[:3]
            hint = f'; it has {", ".join(close)}' if close else ''
            raise InputError(f'timm {timm.__version__} has no model {self.model_name!r}{hint}')
        for any_size in ANY_SIZE:
            try:
                return timm.create_model(self.model_name, **options, **{**any_size, **self._settings})
            except TypeError as error:
                if not any(f"'{name}'" in str(error) for name in any_size):
                    raise InputError(f"timm's {self.model_name} cannot be built: {error}") from error
        raise AssertionError

    def _cut(self, whole: nn.Module) -> nn.Module:
        """A whole model without what comes after the last output."""
        if hasattr(whole, 'prune_intermediate_layers'):
            whole.prune_intermediate_layers(list(self.out_indices), prune_norm=not self.is_plain, prune_head=True)
            return whole
        try:
            return self._create(pretrained=False, features_only=True, out_indices=self.out_indices)
        except RuntimeError as error:
            raise InputError(f"timm's {self.model_name} gives no maps: {error}") from error

    def init_weights(self) -> None:
        """Load timm's weights, or those of the file of `init_cfg`."""
        if not (isinstance(self.init_cfg, dict) and self.init_cfg.get('type') == 'Pretrained'):
            super().init_weights()
            return
        path, source = self.init_cfg['checkpoint'], {}
        if not path.startswith(FROM_TIMM):
            state_dict = read_state_dict(path)
            for prefix in ('backbone.model.', 'model.'):
                own = {n.removeprefix(prefix): value for n, value in state_dict.items() if n.startswith(prefix)}
                if own:
                    check_fit(path, own, self.model.state_dict())
                    self._load(own, path)
                    return
            source = dict(pretrained_cfg_overlay=dict(state_dict=state_dict))
        try:
            if hasattr(self.model, 'forward_intermediates'):
                # The classifier is built, too: without it, timm would accept a file that lacks weights.
                loaded = self._cut(self._create(pretrained=True, **source))
            else:
                loaded = self._create(pretrained=True, features_only=True, out_indices=self.out_indices, **source)
        except (OSError, RuntimeError) as error:
            reason = ' '.join(str(error).split())[:200]
            raise InputError(
                f"weights of timm's {self.model_name} cannot be had from {path}: {reason}; name a file of them with "
                'init_cfg.checkpoint of the backbone, or start from random weights with init_cfg=None'
            ) from error
        self._load(loaded.state_dict(), path)

    def _load(self, state_dict: dict[str, Tensor], path: str) -> None:
        self.model.load_state_dict(state_dict)
        self._is_init = True
        print_log(f'TimmBackbone: loaded {path}', logger='current')

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) to (B, C_i, H_i, W_i) for each of `out_indices`, H_i = H / stride, rounded up."""
        height, width = x.shape[2:]
        x = pad_to_patches(x, self._stride)
        if self.is_plain and self._patch != self._stride:
            size = [length // self._stride * self._patch for length in x.shape[2:]]
            x = F.interpolate(x, size, mode='bilinear', align_corners=False, antialias=True)
        if hasattr(self.model, 'forward_intermediates'):
            maps = self.model.forward_intermediates(
                x, indices=list(self.out_indices), norm=self.is_plain, output_fmt='NCHW', intermediates_only=True
            )
        else:
            maps = self.model(x)
            if getattr(self.model, 'output_fmt', Format.NCHW) == Format.NHWC:
                maps = [map_.permute(0, 3, 1, 2) for map_ in maps]
        return tuple(
            map_[:, :, : -(-height // stride), : -(-width // stride)].contiguous()
            for map_, stride in zip(maps, self.out_strides, strict=True)
        )

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Depth of a parameter by timm's groups, and the number of depths; as in `Backbone.get_layer_depth`."""
        if not self._depths:
            raise InputError(f"timm's {self.model_name} has no group_matcher: train it without layer_decay_rate")
        own = {self._depths.get(_name(name), 0) for name, _ in self.model.named_parameters()}
        num_depths = max(own) + 2
        name = _name(param_name.removeprefix(prefix))
        if not param_name.startswith(prefix) or name not in self._depths:
            return num_depths - 1, num_depths
        return self._depths[name], num_depths

    def train(self, mode: bool = True) -> 'TimmBackbone':
        super().train(mode)
        if self.frozen_stages >= 0 and hasattr(self, 'model'):
            frozen = set()
            for name, parameter in self.model.named_parameters():
                if self._stages.get(_name(name), math.inf) <= self._last_frozen:
                    parameter.requires_grad_(False)
                    frozen.add(id(parameter))
            for module in self.model.modules():
                own = [id(parameter) for parameter in module.parameters()]
                if own and frozen.issuperset(own):
                    module.eval()
        return self


def _default_indices(strides: Sequence[int], is_plain: bool) -> tuple[int, ...]:
    if is_plain:
        return tuple(sorted({len(strides) * part // 4 - 1 for part in range(1, 5)} - {-1}))
    # The last map of each stride.
    last = {stride: index for index, stride in enumerate(strides)}
    return tuple(last[stride] for stride in PYRAMID_STRIDES if stride in last)


def _name(name: str) -> str:
    """Name of a parameter of the backbone in `_depths`."""
    return name.removeprefix('model.').replace('.', '_')


def _depths(model: nn.Module, coarse: bool) -> dict[str, int]:
    """Depth of each parameter of a model by timm's groups, by its name with '_' for every dot; {} if it has none."""
    if not hasattr(model, 'group_matcher'):
        return {}
    groups = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
    return {_name(name): depth for name, depth in groups.items()}
