"""The backbones as models of timm: a classifier, and what `features_only=True` gives.

`timm_registry` registers them. The names of their weights are those of mmpretrain's `ImageClassifier` with
a `LinearClsHead`, `backbone.*` and `head.fc.*`: a checkpoint of one is a checkpoint of the other.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial

from timm.layers import Format, nchw_to, register_notrace_module, to_2tuple
from timm.models import FeatureDictNet, FeatureInfo, FeatureListNet, build_model_with_cfg, get_pretrained_cfg_value
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..checkpoints import fit_backbone, weights_of
from ..errors import InputError
from ..layers import (
    GPSA,
    AggregatedAttention,
    ConvGLU,
    ConvolutionalSparseReconstruction,
    GaussianRelPosAttention,
    GlobalFilter,
    LengthScaledAttention,
    PerformerAttention,
    PeripheralAttention,
    PositionEmbedding,
    SoftmaxAttention,
    SparseReconstructionAttention,
    layout,
)
from ..models.backbones import VARS, Backbone, ConViT, GABSwin, GABViT, PerViT, TransNeXt
from ..models.backbones.base import check_images

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

# torch.fx does not look into what follows shapes and calls operators; as timm marks its own modules.
for _module in (
    AggregatedAttention,
    ConvGLU,
    ConvolutionalSparseReconstruction,
    GaussianRelPosAttention,
    GlobalFilter,
    GPSA,
    LengthScaledAttention,
    PerformerAttention,
    PeripheralAttention,
    PositionEmbedding,
    SoftmaxAttention,
    SparseReconstructionAttention,
):
    register_notrace_module(_module)


class TimmModel(nn.Module):
    """What timm asks of all models.

    Args:
        backbone: Any of the backbones.

    Attributes:
        feature_info: Channels (`num_chs`), stride (`reduction`) and name (`module`) of what each stage gives.
        in_chans: Channels of the images.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.in_chans = backbone.in_channels
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=f'backbone.{_module_of_stage(backbone, index)}')
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

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Prepare for training at another image size, where that means something.

        All models take any size as they are. A TransNeXt with `bias_mode='interpolate'` resizes its position bias
        from this one.

        Args:
            img_size: Int or (height, width) in pixels.
        """
        if hasattr(self.backbone, 'set_img_size'):
            self.backbone.set_img_size(img_size)
            # What timm writes into a model's configuration for the hub.
            self._traits = dict(getattr(self, '_traits', {}), img_size=to_2tuple(img_size))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations again in the backward pass instead of keeping them."""
        for module in (self.backbone, *getattr(self.backbone, 'stages', ())):
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

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> list | tuple[Tensor, list] | dict:
        """What `forward_features` gives, and what stages, in plain backbones blocks, give on the way there.

        Args:
            x: (B, in_chans, H, W).
            indices: Stages, negative ones counted from the last; an int for that many of the last, None for all.
            return_prefix_tokens: With each intermediate its class token, (B, 1, C); (B, 0, C) where it has none.
            norm: Normalise the intermediates as the last map is: those of the classifier's width, in pyramids that of
                the last stage. TransNeXt's stages normalise what they give in either case.
            stop_early: Do not run what comes after the last of `indices`; the features are those of that stage then.
            output_fmt: 'NCHW', 'NHWC' or 'NLC', of the intermediates.
            intermediates_only: Leave the features out.
            output_dict: Return a dict with the keys of timm's ViT.

        Returns:
            The features and the list of intermediates in the order of the network, each a tensor, with
            `return_prefix_tokens` (tensor, class token).

        Raises:
            InputError: There is no such format.
        """
        if output_fmt not in ('NCHW', 'NHWC', 'NLC'):
            raise InputError(f"output_fmt must be 'NCHW', 'NHWC' or 'NLC', got {output_fmt!r}")
        backbone = self.backbone
        check_images(x, backbone.in_channels)
        num_stages = len(_stages(backbone))
        taken, last = feature_take_indices(num_stages, indices)
        maps, prefixes = [], []
        for index, (tokens, grid) in enumerate(backbone.iterate_stages(x)):
            normed = backbone.norm_of_stage(index)(tokens)
            if index in taken:
                shown = tokens
                if norm:
                    plain = not hasattr(backbone, 'stages') and tokens.shape[-1] == self.num_features
                    shown = backbone.norm_of_stage(num_stages - 1)(tokens) if plain else normed
                map_ = layout.as_map(shown, grid)
                maps.append(map_ if output_fmt == 'NCHW' else nchw_to(map_, Format(output_fmt)))
                prefixes.append(_class_token(shown, grid))
            if stop_early and index == last:
                break
        features = normed if getattr(backbone, 'out_type', None) == 'cls_token' else layout.as_map(normed, grid)
        if output_dict:
            result = dict(image_intermediates=maps)
            if return_prefix_tokens:
                result['image_intermediates_prefix'] = prefixes
            return result if intermediates_only else {**result, 'image_features': features}
        if return_prefix_tokens:
            maps = list(zip(maps, prefixes))
        return maps if intermediates_only else (features, maps)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Take out what comes after the last of some stages, in plain backbones blocks.

        Args:
            indices: As in `forward_intermediates`.
            prune_norm: Also the norm of the last stage.
            prune_head: Also the classifier's last layer and its pooling, as always where a stage is taken out.

        Returns:
            The stages, counted from 0.
        """
        num_stages = len(_stages(self.backbone))
        taken, last = feature_take_indices(num_stages, indices)
        ends = last < num_stages - 1
        self.backbone.end_with_stage(last, with_norm=not (prune_norm or ends))
        if ends:
            self.num_features = self.head_hidden_size = self.feature_info[last]['num_chs']
            self.pooling = 'avg'
        if prune_head or ends:
            self.reset_classifier(0, '')
        return taken

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
        # The weights have the names of mmpretrain's ImageClassifier, which calls the filter so, too.
        self.backbone._checkpoint_filter(state_dict, '')


class TimmFeatures(TimmModel):
    """What timm's `features_only=True` gives: (B, 3, H, W) to a list of maps, (B, C_i, H_i, W_i).

    They are the maps of the backbone itself.

    Args:
        backbone: Name of the class.
        in_chans: Channels of the images.
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
        super().__init__(BACKBONES[backbone](in_channels=in_chans, **settings))
        self.feature_info = FeatureInfo(self.feature_info, self.backbone.out_indices)

    @property
    def return_layers(self) -> dict[str, int]:
        """The stages whose maps are returned, by the names of their modules.

        As in timm's `FeatureListNet`, it can be set: transformers asks so for hidden states beside the maps.
        """
        return {self.feature_info.info[index]['module']: index for index in self.backbone.out_indices}

    @return_layers.setter
    def return_layers(self, names: Collection[str]) -> None:
        modules = [info['module'] for info in self.feature_info.info]
        self.backbone.out_indices = tuple(index for index, module in enumerate(modules) if module in names)

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
    name: str,
    backbone: str,
    settings: dict,
    pretrained: bool = False,
    features_only: bool = False,
    feature_cls: str | type | None = None,
    **kwargs,
) -> nn.Module:
    """Build one of the models that `timm_registry` names, as `timm.create_model` asks for it.

    Args:
        name: Name of the model.
        backbone: Name of the class.
        settings: Arguments of the class that make the model.
        pretrained: Load the weights that the model's `pretrained_cfg` names.
        features_only: Build what gives maps instead of a `TimmClassifier`.
        feature_cls: How. None or 'list' for a `TimmFeatures`; of timm's own, all around a classifier, 'getter' calls
            its `forward_intermediates`, 'hook' and 'fx' catch what the stages, in plain backbones the blocks, give,
            as it is.
        **kwargs: Arguments of the two, of the backbone, and of timm's `build_model_with_cfg`.

    Raises:
        InputError: timm's class is for models that are one sequence of modules, which these are not.
    """
    feature_cfg = kwargs.pop('feature_cfg', None) or {}
    feature_cls = feature_cls or feature_cfg.pop('feature_cls', None)
    kwargs = {**settings, **feature_cfg, **kwargs}
    # The backbone converts weights for other numbers of channels: timm would do it a second time.
    kwargs['pretrained_cfg_overlay'] = {**(kwargs.get('pretrained_cfg_overlay') or {}), 'first_conv': None}
    model_cls = partial(TimmClassifier, backbone)
    if not features_only:
        options = {}
    elif feature_cls in (None, 'list'):
        model_cls = partial(TimmFeatures, backbone)
        options = dict(kwargs_filter=('num_classes', 'global_pool', 'drop_rate'))
    elif feature_cls in ('dict', FeatureDictNet, FeatureListNet):
        raise InputError(f"feature_cls of {name} must be 'list', 'getter', 'hook' or 'fx', got {feature_cls!r}")
    else:
        options = dict(features_only=True, feature_cfg=dict(feature_cls=feature_cls))
        kwargs.setdefault('out_indices', BACKBONES[backbone].default_out_indices(kwargs['arch']))
    model = build_model_with_cfg(model_cls, name, pretrained, pretrained_filter_fn=_fitted, **options, **kwargs)
    model.pretrained_cfg['first_conv'] = get_pretrained_cfg_value(name, 'first_conv')
    if features_only:
        for key in ('num_classes', 'classifier'):
            model.pretrained_cfg.pop(key, None)
    return model


def _stages(backbone: Backbone) -> nn.ModuleList:
    """The stages of a backbone that are built, in a plain one its blocks."""
    return backbone.stages if hasattr(backbone, 'stages') else backbone.blocks


def _module_of_stage(backbone: Backbone, stage: int) -> str:
    """Name of the module whose output is that of a stage."""
    if not hasattr(backbone, 'stages'):
        return f'blocks.{stage}'
    # Stages after the last output may not be built. Swin's have what halves the grid for the next one at their end.
    built = backbone.stages[stage : stage + 1]
    return f'stages.{stage}' + ''.join(f'.blocks.{len(s.blocks) - 1}' for s in built if hasattr(s, 'downsample'))


def _class_token(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """What comes before the tokens of a grid: (B, 1, C), or (B, 0, C) if nothing does."""
    if tokens.dim() == 4:
        return tokens.new_empty(tokens.shape[0], 0, tokens.shape[-1])
    return tokens[:, : tokens.shape[1] - grid[0] * grid[1]]


def _fit_checkpoint(model: TimmModel, state_dict: dict, prefix: str, *args: object) -> None:
    """PyTorch calls this before it loads a state dict; with a prefix it is that of a model around this one."""
    if state_dict and not prefix:
        model.fit_checkpoint(state_dict)


def _fitted(state_dict: dict, model: TimmModel) -> dict:
    """timm calls this before it leaves out the weights of a last layer for another number of classes."""
    state_dict = dict(state_dict)
    model.fit_checkpoint(state_dict)
    return state_dict
