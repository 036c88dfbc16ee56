"""The backbone of a config, or of a model of timm, with the weights of a checkpoint."""

import argparse
import copy
import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import init_default_scope
from torch import Tensor, nn

from ..checkpoints import Release, load_backbone
from ..errors import InputError, first_line
from ..runtime.files import unique_name
from ..systems.common.attention_maps import Recording
from ..systems.common.backbone import Backbone
from ..systems.common.blocks import pad_to_patches
from ..systems.timm_models import timm_registry
from ..training.config.loading import load_config
from ..training.runner import without_initial_values
from .attention_recorder import record_attention

SEED = 0  # of random weights
RANDOM_WEIGHTS = 'random weights'
PRETRAINED = 'pretrained'  # stands in place of a checkpoint for timm's own weights
# timm's models with more than five stages, such as the blocks of a ViT, give so many outputs, evenly spread.
NUM_OUTPUTS = 4
# Parts of the names of parameters that tell where tokens are: tables, vectors and small networks of positions.
POSITION = re.compile(
    r'(abs(olute)?_)?pos_embed(ding)?s?|position(_embedding|_bias)?s?|pos_(bias|proj)|rel(ative)?_pos(ition)?(_\w+)?|'
    r'cpb_mlp|gaussian|window_bias|distance_embedding'
)
# Arguments with which models of timm take images of any size, each of a family of models.
ANY_SIZE = (dict(dynamic_img_size=True, dynamic_img_pad=True), dict(strict_img_size=False))


@dataclass
class Source:
    """A model that a tool is asked to look into.

    Attributes:
        name: Its name in the results, which no other has.
        config: Its config; see `timm_config` for a model of timm.
        checkpoint: File of its weights, or `PRETRAINED`, or None.
    """

    name: str
    config: Config
    checkpoint: str | None


def read_sources(args: argparse.Namespace) -> list[Source]:
    """The models that a tool is called with, whose parser has `ToolParser.add_backbone_arguments`."""
    models = [('compare', [args.config, args.checkpoint])] if args.config else []
    models += [(option, words) for option in ('compare', 'timm') for words in getattr(args, option)]
    if not models:
        raise InputError('name a config, or a model of timm with --timm')
    sources = []
    for option, words in models:
        if len(words) > 2:
            kind = 'a config' if option == 'compare' else 'the name of a model'
            raise InputError(f'--{option} takes {kind} and a checkpoint, got {len(words)} words: {" ".join(words)}')
        name, checkpoint = (*words, None)[:2]
        if option == 'timm':
            config, name = timm_config(name), f'{name}.py'
        else:
            # Only the images of the first config are used.
            dataloaders = () if sources or args.images else ('val_dataloader',)
            config = load_config(name, mini=args.mini, cfg_options=args.cfg_options, dataloaders=dataloaders)
        sources.append(Source(unique_name(name, [source.name for source in sources]), config, checkpoint))
    return sources


def timm_config(name: str) -> Config:
    """A config of a model of timm, as far as analysis reads one: the backbone, and how its images are prepared.

    The name may be of this package's models in timm, and have a tag of weights.
    """
    plain = name.partition('.')[0]
    if not timm.is_model(plain):
        close = ' or '.join(difflib.get_close_matches(plain, timm.list_models(), 3))
        raise InputError(f'timm has no model {name}' + (f'; did you mean {close}?' if close else ''))
    try:
        cfg = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag
        raise InputError(f'timm has no such weights: {error}') from error
    if plain in timm_registry.MODELS:
        kind, settings = timm_registry.MODELS[plain]
        backbone = dict(type=f'bioattn_mm.{kind}', **settings)
    else:
        backbone = dict(type='timm', model_name=name)
    resize = dict(type='Resize', scale=cfg.input_size[:0:-1], keep_ratio=False, interpolation='bicubic')
    pipeline = [dict(type='bioattn_mm.CheckedLoadImageFromFile'), resize, dict(type='PackInputs')]
    mean, std = ([255 * value for value in values] for values in (cfg.mean, cfg.std))
    preprocessor = dict(type='ClsDataPreprocessor', mean=mean, std=std, to_rgb=True)
    config = dict(
        default_scope='mmpretrain',
        model=dict(backbone=backbone, data_preprocessor=preprocessor),
        test_dataloader=dict(dataset=dict(type='CustomDataset', data_root='', pipeline=pipeline)),
        val_dataloader=None,
    )
    return Config(config, cfg_text=name, filename=name)  # its text is not read from a file


def build_backbone(
    config: Config, checkpoint: str | None = None, device: str = 'cpu', size: tuple[int, int] | None = None
) -> tuple[nn.Module, str]:
    """Build the backbone of a config for analysis: in eval mode, its parameters without gradients.

    Args:
        config: Config of a whole model of mmdet, mmseg or mmpretrain, or `timm_config`.
        checkpoint: File of the whole model, of its backbone, or of ImageNet; of timm's models also `PRETRAINED`. None
            for the file in the backbone's `init_cfg` if it is local, else random weights, the same in every run.
        device: Where it computes.
        size: (height, width) of the images, for models of timm that must know it.

    Returns:
        The backbone, a subclass of `Backbone` or an `OtherBackbone`, and the file of its weights or 'random weights'.

    Raises:
        InputError: It cannot be built, or the checkpoint does not fit it.
    """
    settings = dict(config.model.get('backbone') or {})
    name = str(settings.pop('type', None))
    if checkpoint == PRETRAINED and name != 'timm':
        raise InputError(f'{PRETRAINED!r} stands for the weights of timm: name a file for {config.filename}')
    init_cfg, prefix = settings.pop('init_cfg', None), ''
    if checkpoint is None and isinstance(init_cfg, dict) and Path(init_cfg.get('checkpoint', '')).is_file():
        checkpoint, prefix = init_cfg['checkpoint'], init_cfg.get('prefix', '')
    init_default_scope(config.default_scope)
    torch.manual_seed(SEED)
    if name == 'timm':
        backbone = TimmBackbone(settings['model_name'], checkpoint == PRETRAINED, size)
    else:
        with MMENGINE_MODELS.switch_scope_and_registry(None) as registry:  # the config's own
            backbone_type = registry.get(name)
        if backbone_type and issubclass(backbone_type, Backbone):
            settings.pop('out_type', None)  # analysis looks at maps, also those of a classifier's backbone
            backbone = backbone_type(**settings)
        else:
            backbone = _openmmlab_backbone(config, backbone_type, name, settings)
    if checkpoint not in (None, PRETRAINED):
        load_backbone(backbone, checkpoint, prefix)
    backbone.to(device)
    backbone.eval()  # `eval` of some models of OpenMMLab returns nothing
    return backbone.requires_grad_(False), checkpoint or RANDOM_WEIGHTS


def with_initial_positions(
    backbone: nn.Module, config: Config, device: str = 'cpu', size: tuple[int, int] | None = None
) -> nn.Module:
    """A copy of what `build_backbone` made, whose position embeddings and biases have their initial values again.

    Raises:
        InputError: It has no position embeddings.
    """
    config = copy.deepcopy(config)
    config.model.backbone.init_cfg = None
    initial = dict(build_backbone(config, None, device, size)[0].named_parameters())
    values = {name: initial[name] for name in initial if any(map(POSITION.fullmatch, name.split('.')))}
    if not values:
        raise InputError(f'{config.filename} has no position embeddings')
    changed = copy.deepcopy(backbone)
    changed.load_state_dict(values, strict=False)
    return changed


class OtherBackbone(nn.Module):
    """A backbone of another library, with what analysis asks of one.

    Args:
        model: The backbone, or timm's classifier.
        name: What it is called in drawings.
        out_indices: Numbers of its outputs, empty if they are not known.
    """

    def __init__(self, model: nn.Module, name: str, out_indices: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.name, self.out_indices = model, name, tuple(out_indices)
        # How `load_backbone` finds its weights: a file has the names within `model`, which may have a part `model`,
        # too, as `TimmBackbone` of the registries does. A file of a backbone alone lacks a classifier's.
        ours = r'model\.model\.' if 'model' in dict(model.named_children()) else r'model\.'
        self.release = Release(
            names=((f'^(?!{ours})', 'model.'),),
            optional=(r'\.relative_position_index$', r'^model\.(head|head_dist|fc|classifier)\.'),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) to feature maps, (B, C_i, H_i, W_i)."""
        outputs = [output[0] if isinstance(output, (tuple, list)) else output for output in self.model(x)]
        if not all(output.dim() == 4 for output in outputs):
            raise InputError(f'the backbone {self.name} gives no feature maps: outputs of {list(outputs[0].shape)}')
        return tuple(outputs)


class TimmBackbone(OtherBackbone):
    """A classifier of timm (see `create_timm_model`); its outputs are maps after its stages or some of its blocks."""

    def __init__(self, name: str, pretrained: bool, size: tuple[int, int] | None) -> None:
        model, _ = create_timm_model(name, pretrained, size)
        if not hasattr(model, 'forward_intermediates'):
            raise InputError(f'timm gives no feature maps of {name}')
        number = len(model.feature_info)
        spread = [(index + 1) * number // NUM_OUTPUTS - 1 for index in range(NUM_OUTPUTS)]
        super().__init__(model, name, range(number) if number <= NUM_OUTPUTS + 1 else spread)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        # Some take whole patches alone: the image is padded at the bottom and right.
        stride = self.model.feature_info[0]['reduction']
        for image in (x, pad_to_patches(x, stride)):
            try:
                options = dict(indices=list(self.out_indices), output_fmt='NCHW', intermediates_only=True)
                return tuple(self.model.forward_intermediates(image, **options))
            except (AssertionError, RuntimeError) as error:
                reason = error
        size = '{} x {}'.format(*x.shape[2:])
        raise InputError(f'{self.name} takes no images of {size}: {first_line(reason)}; set --size') from reason


def output_numbers(backbone: nn.Module, number: int) -> list[int]:
    """The numbers of a backbone's outputs in its network: stages or blocks; where they are not known from 0 on."""
    known = len(backbone.out_indices) == number and min(backbone.out_indices) >= 0
    return list(backbone.out_indices if known else range(number))


def numbered(values: Sequence, number: int, option: str) -> object:
    """One of the layers or outputs of a model by the number that `option` has; negative ones count from the end."""
    if not -len(values) <= number < len(values):
        raise InputError(f'{option} must be {-len(values)} to {len(values) - 1} in this model, got {number}')
    return values[number]


def build_randomly(settings: dict, scope: str) -> nn.Module:
    """A module of a library's registry with random weights, the same in every run."""
    init_default_scope(scope)
    torch.manual_seed(SEED)
    module = MMENGINE_MODELS.build(settings)
    with without_initial_values():
        module.init_weights()
    return module


def attention_layers(name: str, backbone: nn.Module, inputs: Tensor) -> list[Recording]:
    """The attention layers of a backbone with what went into them, for an image, (1, channels, H, W).

    Raises:
        InputError: The model, whose `name` is for the message, has none.
    """
    recordings = record_attention(backbone, inputs)
    if not recordings:
        raise InputError(f'{name} has no attention layer that can be looked into')
    return recordings


def create_timm_model(
    name: str, pretrained: bool, size: tuple[int, int] | None, **settings: object
) -> tuple[nn.Module, dict]:
    """A model of timm, for images of any size where it can be had, else of `size`; and the arguments that gave it.

    Raises:
        InputError: timm has no weights for it.
    """
    options = [*ANY_SIZE, *([dict(img_size=size)] if size else []), {}]
    for option in options:
        arguments = {**option, **settings}
        try:
            return timm.create_model(name, pretrained=pretrained, **arguments), arguments
        except TypeError:
            if option == options[-1]:
                raise
        except (AssertionError, RuntimeError) as error:
            raise InputError(f'timm cannot make {name}: {first_line(error)}') from error


def _openmmlab_backbone(config: Config, backbone_type: type | None, name: str, settings: dict) -> OtherBackbone:
    """A backbone of mmdet, mmseg or mmpretrain with its initial weights."""
    if backbone_type is None:
        raise InputError(f'{config.filename} has the backbone {name}, which no library has that is installed')
    if 'out_type' in inspect.signature(backbone_type).parameters:
        settings['out_type'] = 'featmap'
    try:
        backbone = build_randomly(dict(type=backbone_type, **settings), config.default_scope)
    except Exception as error:
        raise InputError(f'the backbone {name} of {config.filename} cannot be built: {first_line(error)}') from error
    out_indices = settings.get('out_indices', ())
    return OtherBackbone(backbone, backbone_type.__name__, () if isinstance(out_indices, int) else out_indices)
