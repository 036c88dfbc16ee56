"""The backbone of a config, or of a model of timm, with the weights of a checkpoint."""

import argparse
import copy
import difflib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import init_default_scope
from torch import Tensor, nn

from ..checkpoints import Release, load_backbone
from ..errors import InputError, first_line
from ..files import unique_name
from ..models.backbones import Backbone
from ..run_config.config import load_config
from ..run_config.runner import without_initial_values
from ..timm_models import timm_registry

SEED = 0  # of random weights
RANDOM_WEIGHTS = 'random weights'
# This word in place of a checkpoint stands for the weights that timm has of one of its models.
PRETRAINED = 'pretrained'
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
    """The models that a tool is called with, whose parser has `ToolParser.add_backbone_arguments`.

    Raises:
        InputError: There are none; a config cannot be read, or the validation images of the first are not there and
            no others are named; timm has no such model.
    """
    sources = []
    for name, checkpoint, is_timm in _models_of(args):
        taken = [source.name for source in sources]
        if is_timm:
            sources.append(Source(unique_name(f'{name}.py', taken), timm_config(name), checkpoint))
            continue
        # Only the images of the first config are used.
        dataloaders = () if sources or args.images else ('val_dataloader',)
        config = load_config(name, mini=args.mini, cfg_options=args.cfg_options, dataloaders=dataloaders)
        sources.append(Source(unique_name(name, taken), config, checkpoint))
    return sources


def _models_of(args: argparse.Namespace) -> list[tuple[str, str | None, bool]]:
    """The models that a tool is called with, and those of `--compare` and `--timm`.

    Returns:
        For each its config or the name of timm's model, its checkpoint or None, and whether it is timm's.

    Raises:
        InputError: There is none, or an option has more than two words.
    """
    models = [(args.config, args.checkpoint, False)] if args.config else []
    for option, kind in (('compare', 'a config'), ('timm', 'the name of a model')):
        for words in getattr(args, option):
            if len(words) > 2:
                raise InputError(
                    f'--{option} takes {kind} and a checkpoint, got {len(words)} words: {" ".join(words)}'
                )
            models.append((*words, None)[:2] + (option == 'timm',))
    if not models:
        raise InputError('name a config, or a model of timm with --timm')
    return models


def timm_config(name: str) -> Config:
    """A config as far as analysis reads one: the backbone, and how its images are resized and normalised.

    Args:
        name: Name of one of timm's models, those of this package among them; may have a tag of weights.

    Raises:
        InputError: There is no such model.
    """
    plain = name.partition('.')[0]
    if not timm.is_model(plain):
        close = difflib.get_close_matches(plain, timm.list_models(), 3)
        hint = f'; did you mean {" or ".join(close)}?' if close else ''
        raise InputError(f'timm has no model {name}{hint}')
    cfg = timm.get_pretrained_cfg(name)
    if plain in timm_registry.MODELS:
        kind, settings = timm_registry.MODELS[plain]
        backbone = dict(type=f'bioattn_mm.{kind}', **settings)
    else:
        backbone = dict(type='timm', model_name=name)
    pipeline = [
        dict(type='bioattn_mm.CheckedLoadImageFromFile'),
        dict(type='Resize', scale=cfg.input_size[:0:-1], keep_ratio=False, interpolation='bicubic'),
        dict(type='PackInputs'),
    ]
    mean, std = ([255 * value for value in values] for values in (cfg.mean, cfg.std))
    config = dict(
        default_scope='mmpretrain',
        model=dict(
            backbone=backbone, data_preprocessor=dict(type='ClsDataPreprocessor', mean=mean, std=std, to_rgb=True)
        ),
        test_dataloader=dict(dataset=dict(type='CustomDataset', data_root='', pipeline=pipeline)),
        val_dataloader=None,
    )
    return Config(config, cfg_text=name, filename=name)  # its text is not read from a file


def build_backbone(
    config: Config,
    checkpoint: str | None = None,
    device: str = 'cpu',
    classes: tuple[type[Backbone], ...] | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[nn.Module, str]:
    """Build the backbone of a config for analysis: in eval mode, its parameters without gradients.

    Args:
        config: Config of a whole model of mmdet, mmseg or mmpretrain, or `timm_config`.
        checkpoint: File of the whole model, of its backbone, or of ImageNet; for a model of timm also `PRETRAINED`.
            None for the file in the backbone's `init_cfg` if it is a local one, else random weights, the same in
            every run.
        device: Device that the backbone is moved to.
        classes: Classes that the backbone may have; None for any.
        size: (height, width) of the images, for models of timm that must know it.

    Returns:
        The backbone, a subclass of `Backbone` or an `OtherBackbone`, and the file of its weights or 'random weights'.

    Raises:
        InputError: The config has another backbone, it cannot be built, or the checkpoint does not fit it.
    """
    settings = dict(config.model.get('backbone') or {})
    name = str(settings.pop('type', None))
    init_default_scope(config.default_scope)
    with MMENGINE_MODELS.switch_scope_and_registry(None) as registry:  # that of the config
        backbone_type = None if name == 'timm' else registry.get(name)
    if classes and not (backbone_type and issubclass(backbone_type, classes)):
        expected = ' or '.join(cls.__name__ for cls in classes)
        raise InputError(f'{config.filename} has the backbone {name}: expected a subclass of {expected}')
    if checkpoint == PRETRAINED and name != 'timm':
        raise InputError(f'{PRETRAINED!r} stands for the weights of timm: name a file for {config.filename}')
    init_cfg = settings.pop('init_cfg', None) or {}
    init_cfg = init_cfg if isinstance(init_cfg, dict) else {}
    prefix = ''
    if checkpoint is None and Path(init_cfg.get('checkpoint', '')).is_file():
        checkpoint, prefix = init_cfg['checkpoint'], init_cfg.get('prefix', '')
    torch.manual_seed(SEED)
    if name == 'timm':
        backbone = _timm_backbone(settings['model_name'], checkpoint == PRETRAINED, size)
    elif backbone_type and issubclass(backbone_type, Backbone):
        settings.pop('out_type', None)  # analysis looks at maps, also those of a classifier's backbone
        backbone = backbone_type(**settings)
    else:
        backbone = _openmmlab_backbone(config, backbone_type, name, settings)
    if checkpoint not in (None, PRETRAINED):
        load_backbone(backbone, checkpoint, prefix)
    backbone.to(device)
    backbone.eval()  # some of OpenMMLab's return nothing
    return backbone.requires_grad_(False), checkpoint or RANDOM_WEIGHTS


def with_initial_positions(
    backbone: nn.Module, config: Config, device: str = 'cpu', size: tuple[int, int] | None = None
) -> nn.Module:
    """A copy of a backbone whose position embeddings and biases have initial values, and all else is as learned.

    Args:
        backbone: What `build_backbone` made of the config.
        config: Its config.
        device: Its device.
        size: As in `build_backbone`.

    Raises:
        InputError: It has no position embeddings.
    """
    config = copy.deepcopy(config)
    config.model.backbone.init_cfg = None
    initial, _ = build_backbone(config, None, device, size=size)
    values = {
        name: value
        for name, value in initial.named_parameters()
        if any(POSITION.fullmatch(part) for part in name.split('.'))
    }
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

    Raises:
        InputError: In `forward`, if its outputs are no feature maps, or it does not take images of this size.
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
        outputs = self.model(x)
        outputs = [output[0] if isinstance(output, (tuple, list)) else output for output in outputs]
        if not all(output.dim() == 4 for output in outputs):
            raise InputError(f'the backbone {self.name} gives no feature maps: outputs of {list(outputs[0].shape)}')
        return tuple(outputs)


class TimmBackbone(OtherBackbone):
    """A classifier of timm; its outputs are the maps after its stages, or after some of its blocks."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._maps(x)
        except AssertionError:
            # Some take whole patches alone: the image is padded at the bottom and right.
            stride = self.model.feature_info[0]['reduction']
            try:
                return self._maps(F.pad(x, (0, -x.shape[3] % stride, 0, -x.shape[2] % stride)))
            except AssertionError as error:
                size = '{} x {}'.format(*x.shape[2:])
                raise InputError(f'{self.name} takes no images of {size}: {error}; set --size') from error

    def _maps(self, x: Tensor) -> tuple[Tensor, ...]:
        indices = list(self.out_indices)
        maps = self.model.forward_intermediates(x, indices=indices, output_fmt='NCHW', intermediates_only=True)
        return tuple(maps)


def output_numbers(backbone: nn.Module, number: int) -> list[int]:
    """The numbers of a backbone's outputs in its network: stages or blocks; where they are not known from 0 on."""
    known = len(backbone.out_indices) == number and min(backbone.out_indices) >= 0
    return list(backbone.out_indices) if known else list(range(number))


def create_timm_model(
    name: str, pretrained: bool, size: tuple[int, int] | None, **settings: object
) -> tuple[nn.Module, dict]:
    """A model of timm, for images of any size where it can be had.

    Args:
        name: Its name, see `timm_config`.
        pretrained: With timm's weights.
        size: As in `build_backbone`.
        **settings: More arguments of `timm.create_model`.

    Returns:
        The model, and the arguments that gave it.

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
        except RuntimeError as error:
            raise InputError(f'timm cannot make {name}: {error}') from error


def _timm_backbone(name: str, pretrained: bool, size: tuple[int, int] | None) -> TimmBackbone:
    """The feature maps of a model of timm.

    Raises:
        InputError: timm has no weights for it, or cannot give its feature maps.
    """
    model, _ = create_timm_model(name, pretrained, size)
    if not hasattr(model, 'forward_intermediates'):
        raise InputError(f'timm gives no feature maps of {name}')
    number = len(model.feature_info)
    if number <= NUM_OUTPUTS + 1:
        return TimmBackbone(model, name, range(number))
    return TimmBackbone(model, name, [(index + 1) * number // NUM_OUTPUTS - 1 for index in range(NUM_OUTPUTS)])


def _openmmlab_backbone(config: Config, backbone_type: type | None, name: str, settings: dict) -> OtherBackbone:
    """A backbone of mmdet, mmseg or mmpretrain with its initial weights.

    Raises:
        InputError: There is no such type, or it cannot be built.
    """
    if backbone_type is None:
        raise InputError(f'{config.filename} has the backbone {name}, which no library has that is installed')
    if 'out_type' in inspect.signature(backbone_type).parameters:
        settings['out_type'] = 'featmap'
    try:
        backbone = MMENGINE_MODELS.build(dict(type=backbone_type, **settings))
    except Exception as error:
        raise InputError(f'the backbone {name} of {config.filename} cannot be built: {first_line(error)}') from error
    with without_initial_values():
        backbone.init_weights()
    out_indices = settings.get('out_indices', ())
    return OtherBackbone(backbone, backbone_type.__name__, () if isinstance(out_indices, int) else out_indices)
