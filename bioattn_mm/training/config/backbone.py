"""A backbone of timm in a config: `--backbone timm/NAME`, and the channels of what comes after it."""

from collections.abc import Sequence

from mmengine.config import Config
from torch import nn

from ...checkpoints.meta_models import on_meta
from ...errors import InputError
from ...registry import MODELS
from .pipelines import as_list, type_name

# What may be named in place of a config, with a backbone.
RECIPES = dict(mask_rcnn='mask_rcnn_coco', dino='dino_coco', upernet='upernet_ade20k')
RECIPES.update(mask2former='mask2former_ade20k', mask2former_instance='mask2former_coco')
PREFIX = 'timm/'
PYRAMID = 'bioattn_mm.SimpleFeaturePyramid'
# Necks in whose place a plain backbone gets a pyramid.
NECKS = ('FPN', 'ChannelMapper')
STRIDES = (4, 8, 16, 32)
# Channels of a pyramid that takes the place of a backbone's maps, which the head reads itself.
OUT_CHANNELS = 256
HEADS = ('decode_head', 'auxiliary_head', 'panoptic_head')


def use_backbone(config: Config, name: str) -> None:
    """Give a config the backbone 'timm/NAME', with timm's weights, normalisation of images and undecayed parameters.

    Raises:
        InputError: There is no such backbone, or it cannot be the model's.
    """
    model_name = name.removeprefix(PREFIX)
    if model_name == name:
        raise InputError(f'--backbone takes {PREFIX}NAME, with a name of timm.list_models(), got {name}')
    weights = dict(type='Pretrained', checkpoint=f'timm://{model_name}')
    config.model.backbone = dict(type='bioattn_mm.TimmBackbone', model_name=model_name, init_cfg=weights)
    config.model.pop('pretrained', None)
    backbone = fit_to_backbone(config)
    from timm.models import get_pretrained_cfg

    known = get_pretrained_cfg(model_name)
    # mmpretrain's configs have the data preprocessor outside of the model.
    for preprocessor in (config.get('data_preprocessor'), config.model.get('data_preprocessor')):
        if known is not None and 'mean' in (preprocessor or {}):
            preprocessor.update(mean=[255 * value for value in known.mean], std=[255 * value for value in known.std])
    rules = config.optim_wrapper.get('paramwise_cfg') or {}
    own = sorted(backbone.no_weight_decay & {parameter for parameter, _ in backbone.named_parameters()})
    keys = {**rules.get('custom_keys', {}), **{f'backbone.{parameter}': dict(decay_mult=0.0) for parameter in own}}
    config.optim_wrapper.paramwise_cfg = dict(flat_decay_mult=0.0) | rules | dict(custom_keys=keys)
    config.optim_wrapper.constructor = 'bioattn_mm.CombinedRulesConstructor'


def fit_to_backbone(config: Config) -> nn.Module | None:
    """Set what a config with a `TimmBackbone` says of its maps: which they are, their channels, a pyramid if plain.

    Returns the backbone, on the meta device, or None for another one, whose config stays as it is.

    Raises:
        InputError: The backbone has no maps of the strides that the model wants.
    """
    model = config.model
    backbone = model.get('backbone') or {}
    if type_name(backbone) != 'TimmBackbone':
        return None

    def build(**options) -> nn.Module:
        backbone.update(options)
        with on_meta():
            return MODELS.build({**backbone, 'init_cfg': None})

    built = build()
    neck = model.get('neck')
    kind = type_name(neck)
    if config.get('default_scope') == 'mmpretrain':
        built = build(out_indices=[-1])
        model.head.in_channels = built.out_channels[-1]
        return built
    if built.is_plain and neck is None:
        _set_pyramid(model, built, list(built.out_channels), OUT_CHANNELS, STRIDES)
        _set_heads(model, [OUT_CHANNELS] * len(STRIDES))
        return built
    channels = (neck or {}).get('in_channels')
    # A model that takes three maps takes those of the strides 8 to 32.
    wanted = STRIDES[-len(channels) :] if isinstance(channels, list) else STRIDES
    if built.is_plain and kind in NECKS:
        built = build(out_indices=[-1])
        first = wanted[neck.get('start_level', 0)]
        strides = [first * 2**level for level in range(neck.num_outs)]
        _set_pyramid(model, built, built.out_channels[-1], neck.out_channels, strides)
        return built
    if not built.is_plain and backbone.get('out_indices') is None:
        missing = [stride for stride in wanted if stride not in built.out_strides]
        if missing:
            raise InputError(
                f"timm's {backbone.model_name} has maps of strides {', '.join(map(str, built.out_strides))}, and the "
                f'model wants {", ".join(map(str, wanted))}: choose another backbone, or set its out_indices'
            )
        built = build(out_indices=[built.out_indices[built.out_strides.index(stride)] for stride in wanted])
    if neck is None:
        _set_heads(model, list(built.out_channels))
    else:
        from_last = kind == 'SimpleFeaturePyramid' and isinstance(neck.get('in_channels'), int)
        neck.in_channels = built.out_channels[-1] if from_last else list(built.out_channels)
    return built


def _set_pyramid(
    model: dict, backbone: nn.Module, channels: int | list[int], out_channels: int, strides: Sequence[int]
) -> None:
    """Make maps of several strides of those of a plain backbone, of which `channels` are read."""
    (stride, *_) = backbone.out_strides
    scales = [stride / wanted for wanted in strides]
    model.neck = dict(type=PYRAMID, in_channels=channels, out_channels=out_channels, stride=stride, scales=scales)


def _set_heads(model: dict, channels: list[int]) -> None:
    for key in HEADS:
        for head in as_list(model.get(key)):
            index = head.get('in_index', list(range(len(channels))) if 'Mask2Former' in head['type'] else -1)
            head['in_channels'] = channels[index] if isinstance(index, int) else [channels[i] for i in index]
