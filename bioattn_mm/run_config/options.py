"""Checks of the options of a config, before anything is built from them."""

import difflib
import inspect
import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, OPTIMIZERS
from mmengine.runner import FlexibleRunner, Runner

from ..errors import InputError
from .classes import OTHER_CLASSES, leaf_dataset_configs

# Names at the top of a config that no argument of a Runner has: others than these, and than what the config has, are
# misspelt.
MORE_NAMES = (
    'activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval', 'find_unused_parameters',
    'gpu_ids', 'log_name', 'model_wrapper_cfg', 'runner_type', 'strategy', 'sync_bn', 'tta_model', 'tta_overrides',
    'tta_pipeline',
)  # fmt: skip
# Dicts that are read and not handed to a class, which would refuse what it does not know, by path with '*' for
# anything: all the names that they may have, if these are known.
READ_DICTS = {
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'env_cfg.mp_cfg': ('mp_start_method', 'opencv_num_threads'),
    'auto_scale_lr': ('enable', 'base_batch_size'),
    'model.*test_cfg*': (),
    'model.*train_cfg*': (),
}
# A new name is a misspelt one if it is so close to one that is there.
SIMILAR = 0.85


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _at_least(minimum: int) -> Callable[[object], bool]:
    """Whether a value is a whole number that is not below a minimum."""
    return lambda value: _is_number(value) and value == int(value) and value >= minimum


def _are_lengths(value: object) -> bool:
    """Whether a value is a number of pixels, or several."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_are_lengths, value))
    return _at_least(1)(value)


def _are_two_lengths(value: object) -> bool:
    """Whether a value is a height and a width in pixels."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and _are_lengths(value)


COUNT = (_at_least(1), 'a whole number, at least 1')
COUNT_OR_NONE = (_at_least(0), 'a whole number, at least 0')
POSITIVE = (lambda value: _is_number(value) and value > 0, 'a number above 0')
SIZE = (_are_two_lengths, 'two numbers of pixels, at least 1')
LENGTHS = (_are_lengths, 'numbers of pixels, at least 1')
RATE = (lambda value: _is_number(value) and value >= 0, 'a number, at least 0')
# What a value may be, by its path, where '*' stands for anything. None is left to whoever reads it.
RULES = {
    'train_cfg.max_iters': COUNT,
    'train_cfg.max_epochs': COUNT,
    'train_cfg.val_interval': COUNT,
    'train_cfg.val_begin': COUNT_OR_NONE,
    '*_dataloader.batch_size': COUNT,
    '*_dataloader.num_workers': COUNT_OR_NONE,
    '*_dataloader.prefetch_factor': COUNT,
    'optim_wrapper.accumulative_counts': COUNT,
    'optim_wrapper.*optimizer.lr': RATE,
    'optim_wrapper.*optimizer.weight_decay': RATE,
    'optim_wrapper.clip_grad.max_norm': POSITIVE,
    'default_hooks.logger.interval': COUNT,
    'default_hooks.checkpoint.interval': (
        lambda value: value == -1 or COUNT[0](value),
        'a whole number, at least 1, or -1 for never',
    ),
    'randomness.seed': (
        lambda value: COUNT_OR_NONE[0](value) and value < 2**32,
        'a whole number from 0 to 4294967295',
    ),
    'model.data_preprocessor.size': LENGTHS,
    'model.data_preprocessor.*size_divisor': LENGTHS,
    'model.data_preprocessor.batch_augments.*.size': LENGTHS,
    '*data_preprocessor.std.?': POSITIVE,
    'model.test_cfg.mode': (lambda value: value in ('slide', 'whole'), 'slide or whole'),
    'model.test_cfg.crop_size': SIZE,
    'model.test_cfg.stride': SIZE,
    # Some crops are parts of the image.
    '*pipeline.*.crop_size.?': POSITIVE,
    '*pipeline.*.scale.?': POSITIVE,
}  # fmt: skip


def check_options(config: Config, trains: bool = True) -> None:
    """Raise an `InputError` that names the first option of a config whose value can be no such thing.

    That is one of `RULES`, and any number that is NaN.

    Args:
        config: The config.
        trains: Whether it is for a training: then also an optimizer that does not exist, and a head of too few
            classes.
    """
    for path, value in _values(config.to_dict()):
        if isinstance(value, float) and math.isnan(value):
            raise InputError(f'{path}={value}: expected a number')
        for pattern, (is_right, expected) in RULES.items():
            if value is not None and fnmatchcase(path, pattern) and not is_right(value):
                raise InputError(f'{path}={value}: expected {expected}')
    if trains:
        _check_optimizers(config)
        _check_num_classes(config)


def check_name(config: Config, key: str) -> None:
    """Raise an `InputError` if an option has a name that nothing reads, as it is misspelt.

    Args:
        config: The config before the option is set.
        key: The option: names of nested dicts and indices of lists, joined by dots.
    """
    first, *rest = key.split('.')
    known = {*config, *_arguments(Runner), *_arguments(FlexibleRunner), *MORE_NAMES}
    if first not in known:
        close = difflib.get_close_matches(first, known, 1)
        meant = f': did you mean {".".join([close[0], *rest])}?' if close else ''
        raise InputError(f'--cfg-options {key}: no config has {first!r}{meant}')
    node, path = config, []
    for name in key.split('.'):
        if not isinstance(node, (dict, Config)):
            return
        for pattern, names in READ_DICTS.items():
            if name in node or not fnmatchcase('.'.join(path), pattern):
                continue
            close = difflib.get_close_matches(name, names or list(node), 1, 0.5 if names else SIMILAR)
            if name not in names and (close or names):
                meant = f': did you mean {".".join([*path, *close])}?' if close else f', expected {", ".join(names)}'
                raise InputError(f'--cfg-options {key}: {".".join(path)} has no {name!r}{meant}')
        node = node.get(name)
        path.append(name)


def _arguments(function: Callable) -> list[str]:
    return list(inspect.signature(function).parameters)


def _values(node: object, path: str = '') -> Iterator[tuple[str, object]]:
    """All values of nested dicts and lists with their paths, also lists as a whole."""
    if not isinstance(node, dict):
        yield path, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for key, value in items:
        yield from _values(value, f'{path}.{key}' if path else str(key))


def _check_optimizers(config: Config) -> None:
    """Raise an `InputError` if there is no optimizer of the name that the config has."""
    with OPTIMIZERS.switch_scope_and_registry(config.get('default_scope')) as registry:
        for path, kind in _values((config.get('optim_wrapper') or ConfigDict()).to_dict()):
            if fnmatchcase(path, '*optimizer.type') and isinstance(kind, str) and registry.get(kind) is None:
                close = difflib.get_close_matches(kind, [*OPTIMIZERS.module_dict], 1)
                meant = f', did you mean {close[0]}?' if close else ''
                raise InputError(f'optim_wrapper.{path}={kind}: there is no such optimizer{meant}')


def _check_num_classes(config: Config) -> None:
    """Raise an `InputError` if a head knows fewer classes than the training data have."""
    dataset = next(leaf_dataset_configs((config.get('train_dataloader') or {}).get('dataset')), None)
    if dataset is None:
        return
    with DATASETS.switch_scope_and_registry(config.get('default_scope')) as registry:
        kind = registry.get(dataset.type) if isinstance(dataset.get('type'), str) else dataset.get('type')
    classes = (dataset.get('metainfo') or {}).get('classes') or getattr(kind, 'METAINFO', {}).get('classes')
    if not isinstance(classes, (list, tuple)):
        return
    for path, number in _values(config.model.to_dict()):
        parts = path.split('.')
        if parts[-1] == 'num_classes' and not {*parts} & {*OTHER_CLASSES} and number and number < len(classes):
            raise InputError(
                f'model.{path}={number}: expected one for each class of the training data, of which there are '
                f'{len(classes)}'
            )
