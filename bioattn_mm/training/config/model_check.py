"""Checks of a config's model before a Runner builds it."""

import copy
import inspect
import traceback
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from ...checkpoints.meta_models import on_meta
from ...errors import InputError, first_line


def state_dict_of(config: Config) -> dict[str, Tensor]:
    """The state dict of a config's model, names and shapes without values; see `model_of`."""
    return model_of(config).state_dict()


def model_of(config: Config) -> nn.Module:
    """A config's model on the meta device, without values; an `InputError` if it cannot be built."""
    init_default_scope(config.default_scope)
    try:
        with on_meta():
            # mmdet changes the config of a model that it builds.
            return MODELS.build(copy.deepcopy(config.model))
    except InputError:
        raise
    except Exception as error:
        reason = first_line(error)
        if 'unexpected keyword argument' in reason:
            reason += f', it takes {", ".join(_arguments_of_failed_class(error))}'
        raise InputError(f'the model of {config.filename} cannot be built: {reason}') from error


def _arguments_of_failed_class(error: Exception) -> list[str]:
    """Arguments of the innermost class that mmengine's `build_from_cfg` was calling when the error was raised."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    (*_, failed_class) = (variables['obj_cls'] for variables in frames if 'obj_cls' in variables)
    return [name for name in inspect.signature(failed_class).parameters if name not in ('args', 'kwargs')]


def check_initial_weights(config: Config) -> None:
    """Raise an `InputError` if a file of pre-trained weights does not exist; `weights_source` says how to get it."""
    for key, module in (('model', config.model), ('model.backbone', config.model.get('backbone', {}))):
        init_cfg = module.get('init_cfg')
        if not isinstance(init_cfg, dict) or init_cfg.get('type') != 'Pretrained':
            continue
        path = init_cfg.checkpoint
        if '://' in path or Path(path).is_file():
            continue
        source = config.get('weights_source')
        raise InputError(
            f'no ImageNet weights at {path}'
            + (f' ({source.rstrip(".")})' if source else '')
            + f'; name a file with --cfg-options {key}.init_cfg.checkpoint=FILE, or start from random weights '
            'with --from-scratch'
        )
