"""Options of a config: merging those of the command line, and refusing misspelt names."""

import difflib
import inspect
from fnmatch import fnmatchcase

from mmengine.config import Config
from mmengine.registry import OPTIMIZERS
from mmengine.runner import FlexibleRunner, Runner

from ...errors import InputError
from .classes import OTHER_CLASSES, dataset_classes, leaf_dataset_configs
from .pipelines import find_dicts

# Names at the top of a config that no argument of a Runner has: others than these, and than what the config has, are
# misspelt.
MORE_NAMES = (
    'activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval', 'find_unused_parameters',
    'gpu_ids', 'log_name', 'model_wrapper_cfg', 'runner_type', 'strategy', 'sync_bn', 'tta_model', 'tta_overrides',
    'tta_pipeline',
)  # fmt: skip
# Dicts that are read and not handed to a class, which would refuse what it does not know, with '*' for anything.
READ_DICTS = ('env_cfg', 'env_cfg.mp_cfg', 'auto_scale_lr', 'model.*test_cfg*', 'model.*train_cfg*')
# A new name is a misspelt one if it is so close to one that is there.
SIMILAR = 0.8


def check_name(config: Config, key: str) -> None:
    """Raise an `InputError` if an option, not yet set, has a name that nothing reads, as it is misspelt."""
    first, *rest = key.split('.')
    arguments = (inspect.signature(runner).parameters for runner in (Runner, FlexibleRunner))
    known = {*config, *MORE_NAMES}.union(*arguments)
    if first not in known:
        close = difflib.get_close_matches(first, known, 1)
        meant = f': did you mean {".".join([close[0], *rest])}?' if close else ''
        raise InputError(f'--cfg-options {key}: no config has {first!r}{meant}')
    node, path = config, ''
    for name in key.split('.'):
        if not isinstance(node, (dict, Config)):
            return
        is_read = any(fnmatchcase(path, pattern) for pattern in READ_DICTS)
        if is_read and name not in node and (close := difflib.get_close_matches(name, list(node), 1, SIMILAR)):
            raise InputError(f'--cfg-options {key}: {path} has no {name!r}: did you mean {path}.{close[0]}?')
        node = node.get(name)
        path = f'{path}.{name}'.lstrip('.')


def merge_options(config: Config, options: dict[str, object]) -> None:
    """Override values of a config with those of `--cfg-options`, by keys with dots between names and indices.

    Raises:
        InputError: A key leads through a value that is neither dict nor list or to an index that a list does not
            have, or a value would replace a whole dict.
    """
    for key, value in options.items():
        old = config
        try:
            for name in key.split('.'):
                old = old[int(name)] if isinstance(old, (list, tuple)) else old.get(name)
                if old is None:
                    break
            replaces_dict = isinstance(old, dict) and value is not None
            if not replaces_dict:
                config.merge_from_dict({key: value})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f'--cfg-options {key}={value} leads nowhere in this config: {error}') from error
        if replaces_dict:
            raise InputError(
                f'--cfg-options {key}={value} would replace a dict with the entries {", ".join(old)}: set one of '
                f'them, {key}.NAME=VALUE'
            )


def expect_weights(config: Config, options: dict[str, object]) -> None:
    """Let `--cfg-options model.backbone.init_cfg.checkpoint=FILE` be enough where there is no `init_cfg` yet.

    A config may have none, or `--mini` took it away. The same for `model.init_cfg`, the weights of a whole model.
    """
    for name, module in (('model', config.model), ('model.backbone', config.model.get('backbone'))):
        if f'{name}.init_cfg.checkpoint' in options and module is not None and not module.get('init_cfg'):
            module.init_cfg = dict(type='Pretrained')


def check_optimizer(config: Config) -> None:
    """Raise an `InputError` if there is no optimizer of the config's name, which mmengine would not name."""
    kind = ((config.get('optim_wrapper') or {}).get('optimizer') or {}).get('type')
    with OPTIMIZERS.switch_scope_and_registry(config.get('default_scope')) as registry:
        if isinstance(kind, str) and registry.get(kind) is None:
            raise InputError(f'optim_wrapper.optimizer.type={kind}: there is no such optimizer')


def check_num_classes(config: Config) -> None:
    """Raise an `InputError` if a head knows fewer classes than the training data have."""
    dataset = next(leaf_dataset_configs((config.get('train_dataloader') or {}).get('dataset')), None)
    number = len(dataset_classes(dataset, config.get('default_scope'))[0]) if dataset else 0
    for key, part in config.model.items():
        for node in find_dicts(part) if key not in OTHER_CLASSES else ():
            if node.get('num_classes') and node['num_classes'] < number:
                raise InputError(
                    f'model.{key} has num_classes={node["num_classes"]}: expected one for each class of the training '
                    f'data, of which there are {number}'
                )
