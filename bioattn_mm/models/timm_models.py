"""The backbones as models of timm: a classifier, and what `features_only=True` gives.

`bioattn_mm.timm_registry` registers them. The names of their weights are those of mmpretrain's `ImageClassifier` with
a `LinearClsHead`, `backbone.*` and `head.fc.*`: a checkpoint of one is a checkpoint of the other.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from timm.models import FeatureInfo, build_model_with_cfg
from torch import Tensor, nn

from ..checkpoints import fit_backbone, weights_of
from ..errors import InputError
from .backbones import VARS, Backbone, ConViT, GABSwin, GABViT, PerViT, TransNeXt

# The classes by name, and the arguments with which each is the backbone of a classifier.
BACKBONES: dict[str, type[Backbone]] = {
    cls.__name__: cls for cls in (ConViT, GABSwin, GABViT, PerViT, TransNeXt, VARS)
}
CLASSIFIER_SETTINGS = dict(
    ConViT=dict(out_type='cls_token'),
    GABSwin=dict(pad_small_map=False),  # as Swin's classifiers were trained
    GABViT=dict(out_type='avg_featmap'),
    PerViT=dict(out_type='avg_featmap'),
    TransNeXt={},
    VARS=dict(out_type='avg_featmap'),
)


class TimmModel(nn.Module):
    """What timm asks of all models.

    Args:
        backbone: Any of the backbones.
        in_chans: Channels of the images, 3.

    Attributes:
        feature_info: Channels (`num_chs`), stride (`reduction`) and name (`module`) of what each stage gives.

    Raises:
        InputError: `in_chans` is not 3.
    """

    def __init__(self, backbone: Backbone, in_chans: int = 3) -> None:
        super().__init__()
        if in_chans != 3:
            raise InputError(
                f'{type(backbone).__name__} takes images of 3 channels, got in_chans={in_chans}: repeat a grey image '
                'three times'
            )
        self.backbone = backbone
        stages = 'stages' if hasattr(backbone, 'stages') else 'blocks'
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=f'backbone.{stages}.{index}')
            for index, (channels, stride) in enumerate(zip(backbone.stage_channels, backbone.stage_strides))
        ]
        self.register_load_state_dict_pre_hook(_fit_checkpoint)

    def fit_checkpoint(self, state_dict: dict) -> None:
        """Give the weights of a file the names of this model.

        Args:
            state_dict: Of the authors' release, of an `ImageClassifier` or of this model; changed in place.

        Raises:
            InputError: The weights are of another system or variant.
        """
        raise NotImplementedError

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not decayed, besides biases and norms, which timm does not decay."""
        return {
            name for name, _ in self.named_parameters() if any(part in name for part in self.backbone.no_weight_decay)
        }

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Function from the name of a parameter to its depth, for timm's layer-wise learning rates.

        Args:
            coarse: Count stages, in plain backbones blocks, instead of blocks.
        """
        of_stage = coarse and hasattr(self.backbone, 'stages')

        def depth_of(name: str) -> int:
            if of_stage and name.startswith('backbone.stages.'):
                return int(name.split('.')[2]) + 1
            depth, _ = self.backbone.get_layer_depth(name, 'backbone.')
            return len(self.backbone.stages) + 1 if of_stage and depth else depth

        return depth_of

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations again in the backward pass instead of keeping them."""
        for module in (self.backbone, *getattr(self.backbone, 'stages', ())):
            if hasattr(module, 'with_cp'):
                module.with_cp = enable


class TimmClassifier(TimmModel):
    """A classifier as timm has them: (B, 3, H, W) to logits, (B, num_classes), for any H, W >= 32.

    Args:
        backbone: Name of the class.
        num_classes: Number of classes; 0 for the pooled features.
        in_chans: Channels of the images, 3.
        global_pool: 'avg', of ConViT 'token'; '' does not pool and needs `num_classes=0`. None pools.
        drop_rate: Dropout before the last layer, in training.
        **settings: Arguments of the backbone, such as `drop_path_rate`, or `bias_mode` of TransNeXt.

    Raises:
        InputError: An argument has another value.
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
        super().__init__(BACKBONES[backbone](**settings), in_chans)
        self.pooling = 'token' if settings.get('out_type') == 'cls_token' else 'avg'
        self.num_features = self.head_hidden_size = self.backbone.out_channels[-1]
        self.head = nn.Sequential(OrderedDict(drop=nn.Dropout(drop_rate), fc=nn.Identity()))
        self.reset_classifier(num_classes, self.pooling if global_pool is None else global_pool)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to logits, (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to the last map, (B, C, H', W'), of ConViT to its tokens, (B, 1 + H' * W', C)."""
        return self.backbone.forward_unpooled(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify what `forward_features` gives.

        Args:
            x: Its output.
            pre_logits: Stop before the last layer.

        Returns:
            Logits, (B, num_classes), or features, (B, C).
        """
        if self.global_pool:
            x = self.backbone.pool_features(x)
        return self.head.drop(x) if pre_logits else self.head(x)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by a new one.

        Args:
            num_classes: Number of classes; 0 leaves it out.
            global_pool: As in the class; None keeps what is set.
        """
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

    def fit_checkpoint(self, state_dict: dict) -> None:
        # As mmpretrain's ImageClassifier, whose names the weights have here, calls it.
        self.backbone._checkpoint_filter(state_dict, '')


class TimmFeatures(TimmModel):
    """What timm's `features_only=True` gives: (B, 3, H, W) to a list of maps, (B, C_i, H_i, W_i).

    They are the maps of the backbone itself.

    Args:
        backbone: Name of the class.
        in_chans: Channels of the images, 3.
        out_indices: Stages, in plain backbones blocks, whose maps are returned; negative ones count from the last,
            and an int stands for that many of the last. None for the backbone's default.
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
        super().__init__(BACKBONES[backbone](**settings), in_chans)
        self.feature_info = FeatureInfo(self.feature_info, tuple(sorted(self.backbone.out_indices)))

    def forward(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W) to the maps, those of the stages `out_indices`, in their order in the network."""
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
) -> TimmModel:
    """Build one of the models that `timm_registry` names, as `timm.create_model` asks for it.

    Args:
        name: Name of the model.
        backbone: Name of the class.
        settings: Arguments of the class that make the model.
        pretrained: Load the weights that the model's `pretrained_cfg` names.
        features_only: Build a `TimmFeatures` instead of a `TimmClassifier`.
        **kwargs: Arguments of the two, of the backbone, and of timm's `build_model_with_cfg`.
    """
    model = build_model_with_cfg(
        partial(TimmFeatures if features_only else TimmClassifier, backbone),
        name,
        pretrained,
        pretrained_filter_fn=_fitted,
        kwargs_filter=('num_classes', 'global_pool', 'drop_rate') if features_only else None,
        **{**settings, **kwargs},
    )
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
