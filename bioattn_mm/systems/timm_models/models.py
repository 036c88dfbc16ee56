"""The backbones as models of timm: a classifier, and what `features_only=True` gives.

`timm_registry` registers them. Their weights have the names of mmpretrain's `ImageClassifier` with a `LinearClsHead`,
`backbone.*` and `head.fc.*`: a checkpoint of one is a checkpoint of the other.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch.fx
from timm.layers import to_2tuple
from timm.models import FeatureInfo, build_model_with_cfg, get_pretrained_cfg_value
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ...checkpoints import fit_backbone, weights_of
from ...errors import InputError
from ..common.backbone import Backbone, check_images
from ..common.layout import as_map
from ..convit import ConViT
from ..gab import GABSwin, GABViT
from ..pervit import PerViT
from ..transnext import TransNeXt
from ..vars import VARS

BACKBONES: dict[str, type[Backbone]] = {
    cls.__name__: cls for cls in (ConViT, GABSwin, GABViT, PerViT, TransNeXt, VARS)
}
# The arguments with which each class is the backbone of a classifier.
CLASSIFIER_SETTINGS = dict(
    ConViT=dict(out_type='cls_token'),
    GABSwin=dict(pad_small_map=False),  # as Swin's classifiers were trained
    GABViT=dict(out_type='avg_featmap'),
    PerViT=dict(out_type='avg_featmap'),
    TransNeXt={},
    VARS=dict(out_type='avg_featmap'),
)


# torch.fx, by which timm traces models, does not look into what follows shapes.


@torch.fx.wrap
def _unpooled(backbone: Backbone, x: Tensor) -> Tensor:
    return backbone.forward_unpooled(x)


@torch.fx.wrap
def _pooled(backbone: Backbone, x: Tensor) -> Tensor:
    return backbone.pool_features(x)


class TimmModel(nn.Module):
    """What timm asks of all models; `feature_info` has channels, stride and name of each stage or plain block."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.in_chans = backbone.in_channels
        name = 'stages' if hasattr(backbone, 'stages') else 'blocks'
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=f'backbone.{name}.{index}')
            for index, (channels, stride) in enumerate(zip(backbone.stage_channels, backbone.stage_strides))
        ]
        self.register_load_state_dict_pre_hook(_fit_checkpoint)

    def fit_checkpoint(self, state_dict: dict) -> None:
        """Give the weights of the authors' release, or of an `ImageClassifier`, the names of this model, in place."""
        self.backbone._checkpoint_filter(state_dict, '')  # mmpretrain's ImageClassifier calls the filter so, too

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not decayed, besides biases and norms."""
        return {
            name for name, _ in self.named_parameters() if any(part in name for part in self.backbone.no_weight_decay)
        }

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Function from the name of a parameter to its depth in blocks, for timm's layer-wise learning rates."""
        return lambda name: self.backbone.get_layer_depth(name, 'backbone.')[0]

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Resize the position bias of a TransNeXt with `bias_mode='interpolate'` from another size, in pixels."""
        if hasattr(self.backbone, 'set_img_size'):
            self.backbone.set_img_size(img_size)
            # timm writes these into a model's configuration for the hub.
            self._traits = dict(getattr(self, '_traits', {}), img_size=to_2tuple(img_size))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations again in the backward pass instead of keeping them."""
        for module in self.backbone.modules():
            if hasattr(module, 'with_cp'):
                module.with_cp = enable


class TimmClassifier(TimmModel):
    """A classifier as timm has them: (B, in_chans, H, W) to logits, (B, num_classes), for any H, W >= 32.

    Args:
        backbone: Name of the class.
        num_classes: Number of classes; 0 for the pooled features.
        in_chans: Channels of the images.
        global_pool: 'avg', of ConViT 'token'; '' does not pool and needs `num_classes=0`. None pools.
        drop_rate: Dropout before the last layer, in training.
        **settings: Arguments of the backbone.
    """

    def __init__(
        self,
        backbone: str,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **settings,
    ) -> None:
        settings = {**CLASSIFIER_SETTINGS[backbone], 'out_indices': (-1,), **settings}
        super().__init__(BACKBONES[backbone](in_channels=in_chans, **settings))
        self.pooling = 'token' if settings.get('out_type') == 'cls_token' else 'avg'
        self.num_features = self.head_hidden_size = self.backbone.out_channels[-1]
        self.head = nn.Sequential(OrderedDict(drop=nn.Dropout(drop_rate), fc=nn.Identity()))
        self.reset_classifier(num_classes, self.pooling if global_pool is None else global_pool)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to logits, (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to the last map, (B, C, H', W'), of ConViT to its tokens, (B, 1 + H' * W', C)."""
        return _unpooled(self.backbone, x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """What `forward_features` gives to logits, (B, num_classes), or with `pre_logits` to features, (B, C)."""
        if self.global_pool:
            x = _pooled(self.backbone, x)
        return self.head.drop(x) if pre_logits else self.head(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What `forward_features` gives, and the maps of stages, in plain backbones blocks, on the way there.

        Args:
            x: (B, in_chans, H, W).
            indices: Stages, negative ones counted from the last; an int for that many of the last, None for all.
            output_fmt: 'NCHW'.
            intermediates_only: Leave the features out, and what comes after the last of `indices`.
        """
        if output_fmt != 'NCHW':
            raise InputError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        check_images(x, self.in_chans)
        taken, last = feature_take_indices(len(self.feature_info), indices)
        maps = []
        for index, (tokens, grid) in enumerate(self.backbone.iterate_stages(x)):
            if index in taken:
                maps.append(as_map(tokens, grid))
            if intermediates_only and index == last:
                return maps
        return self.backbone.as_output(index, tokens, grid), maps

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by a new one; the arguments are those of the class, None keeps what is set."""
        global_pool = self.global_pool if global_pool is None else global_pool
        if global_pool not in (self.pooling, ''):
            raise InputError(f"global_pool must be '{self.pooling}' or '', got {global_pool!r}")
        if num_classes and not global_pool:
            raise InputError(f"global_pool='' needs num_classes=0, got {num_classes}")
        self.num_classes, self.global_pool = num_classes, global_pool
        fc = nn.Identity()
        if num_classes:
            parameter = next(self.backbone.parameters())
            fc = nn.Linear(self.num_features, num_classes, device=parameter.device, dtype=parameter.dtype)
            nn.init.trunc_normal_(fc.weight, std=0.02)
            nn.init.zeros_(fc.bias)
        self.head.fc = fc.train(self.training)


class TimmFeatures(TimmModel):
    """What timm's `features_only=True` gives: the maps of the backbone, (B, C_i, H_i, W_i), for (B, 3, H, W).

    Args:
        backbone: Name of the class.
        in_chans: Channels of the images.
        out_indices: Stages, in plain backbones blocks; negative ones count from the last, and an int stands for that
            many of the last. None for the backbone's default.
        **settings: Arguments of the backbone.
    """

    num_classes = 0

    def __init__(
        self, backbone: str, in_chans: int = 3, out_indices: int | Sequence[int] | None = None, **settings
    ) -> None:
        if isinstance(out_indices, int):
            out_indices = range(-out_indices, 0)
        if out_indices is not None:
            settings['out_indices'] = tuple(out_indices)
        super().__init__(BACKBONES[backbone](in_channels=in_chans, **settings))
        self.feature_info = FeatureInfo(self.feature_info, self.backbone.out_indices)

    @property
    def return_layers(self) -> dict[str, int]:
        """The stages whose maps are returned; transformers sets them, by names, for hidden states beside the maps."""
        return {self.feature_info.info[index]['module']: index for index in self.backbone.out_indices}

    @return_layers.setter
    def return_layers(self, names: Collection[str]) -> None:
        modules = [info['module'] for info in self.feature_info.info]
        self.backbone.out_indices = tuple(index for index, module in enumerate(modules) if module in names)

    def forward(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W) to the maps of the stages `out_indices`, in their order in the network."""
        return list(self.backbone(x))

    def fit_checkpoint(self, state_dict: dict) -> None:
        weights = weights_of('the file', state_dict)
        own = {n.removeprefix('backbone.'): value for n, value in weights.items() if n.startswith('backbone.')}
        match = fit_backbone(self.backbone, 'the file', own or weights)
        initial = self.backbone.state_dict()
        kept = {name: initial[name] for name in match.kept}
        state_dict.clear()
        state_dict.update({f'backbone.{name}': value for name, value in (match.weights | kept).items()})


def create_model(
    name: str, backbone: str, settings: dict, pretrained: bool = False, features_only: bool = False, **kwargs
) -> nn.Module:
    """Build one of the models that `timm_registry` names, as `timm.create_model` asks for it.

    Args:
        name: Name of the model.
        backbone: Name of the class.
        settings: Arguments of the class that make the model.
        pretrained: Load the weights that the model's `pretrained_cfg` names.
        features_only: Build a `TimmFeatures` instead of a `TimmClassifier`.
        **kwargs: Arguments of the two, of the backbone, and of timm's `build_model_with_cfg`.
    """
    kwargs = {**settings, **kwargs}
    feature_cls = kwargs.pop('feature_cls', None)
    if feature_cls not in (None, 'list'):
        raise InputError(f"feature_cls of {name} must be 'list', got {feature_cls!r}")
    # The backbone converts weights for other numbers of channels: timm would do it a second time.
    kwargs['pretrained_cfg_overlay'] = {**(kwargs.get('pretrained_cfg_overlay') or {}), 'first_conv': None}
    if features_only:
        kwargs['kwargs_filter'] = ('num_classes', 'global_pool', 'drop_rate')
    model_cls = partial(TimmFeatures if features_only else TimmClassifier, backbone)
    model = build_model_with_cfg(model_cls, name, pretrained, pretrained_filter_fn=_fitted, **kwargs)
    model.pretrained_cfg['first_conv'] = get_pretrained_cfg_value(name, 'first_conv')
    if features_only:
        for key in ('num_classes', 'classifier'):
            model.pretrained_cfg.pop(key, None)
    return model


def _fit_checkpoint(model: TimmModel, state_dict: dict, prefix: str, *args: object) -> None:
    """PyTorch calls this before it loads a state dict; with a prefix it is that of a model around this one."""
    if state_dict and not prefix:
        model.fit_checkpoint(state_dict)


def _fitted(state_dict: dict, model: TimmModel) -> dict:
    """timm calls this before it leaves out the weights of a last layer for another number of classes."""
    state_dict = dict(state_dict)
    model.fit_checkpoint(state_dict)
    return state_dict
