"""Training from random weights, for which the configs' own learning rates are too low."""

import math
from collections.abc import Callable
from fnmatch import fnmatchcase

from mmengine.config import Config

# Random weights need higher rates than the configs', which fine-tune. Decoders with queries take a lower one than
# others, and so do classifiers, which have hardly anything but the backbone.
LEARNING_RATE = 1e-3
# The first rate is for trainings of up to so many steps. Longer ones take a lower one, but none below the least: see
# `set_scratch_rate`.
SHORT_STEPS = 200
LEAST_LEARNING_RATE = 1e-4
CLASSIFICATION_LEARNING_RATE = 4e-4
QUERY_LEARNING_RATE = 2e-4
QUERY_HEADS = ('decode_head', 'panoptic_head')  # of Mask2Former in mmseg and in mmdet
# A backbone that knows nothing yet learns as fast as the rest of the model.
RATE_FACTORS = ('optim_wrapper.paramwise_cfg.*.lr_mult', 'optim_wrapper.paramwise_cfg.layer_decay_rate')


def start_from_scratch(config: Config) -> None:
    """Let a config train from random weights, with one learning rate for all parameters.

    The rate is 1e-3, of models with queries 2e-4, of classifiers 4e-4, whatever the batch: found with the miniature
    runs' 2 images a step (classifiers: 16). For other batches it is a beginning. 1e-3 is for some hundred steps, see
    `set_scratch_rate`.

    Args:
        config: Changed in place: initial weights, `load_from`, learning rates and `auto_scale_lr`.
    """
    model = config.model
    model.pop('pretrained', None)
    model.backbone.init_cfg = None
    if config.get('load_from'):  # of a whole model
        config.load_from = None
    if isinstance(model.get('init_cfg'), dict) and model.init_cfg.get('type') == 'Pretrained':
        model.init_cfg = None
    changed = map_values(config.optim_wrapper.to_dict(), _without_factor, 'optim_wrapper')
    config.optim_wrapper.update(changed)
    if 'auto_scale_lr' in config:
        config.auto_scale_lr.enable = False
    rate = CLASSIFICATION_LEARNING_RATE if config.default_scope == 'mmpretrain' else LEARNING_RATE
    config.optim_wrapper.optimizer.lr = QUERY_LEARNING_RATE if _has_queries(config) else rate


def has_rate_by_length(config: Config) -> bool:
    """Whether the rate from random weights falls with the length of the training: not of queries and classifiers."""
    return config.default_scope != 'mmpretrain' and not _has_queries(config)


def set_scratch_rate(config: Config, num_steps: int) -> None:
    """Set the learning rate of a training from random weights by its length.

    It falls with the square root of the number of steps, as the best step size of stochastic gradient descent does:
    1e-3 for 200 steps, 3e-4 for 2,200, 1e-4 for 20,000 and more.

    Args:
        config: One that `has_rate_by_length`. Changed in place, after `start_from_scratch`.
        num_steps: Number of steps of the whole training.
    """
    rate = LEARNING_RATE * min(1, math.sqrt(SHORT_STEPS / num_steps))
    config.optim_wrapper.optimizer.lr = float(f'{max(LEAST_LEARNING_RATE, rate):.2g}')


def _has_queries(config: Config) -> bool:
    model = config.model
    return 'num_queries' in model or any('num_queries' in model.get(key, {}) for key in QUERY_HEADS)


def _without_factor(path: str, value: object) -> object:
    return 1.0 if is_one_of(path, RATE_FACTORS) else value


def map_values(node: object, function: Callable[[str, object], object], path: str = '') -> object:
    """A copy of nested dicts and lists with every value replaced by `function(path, value)`.

    A path is the keys and indices to a value with dots between them, as for `--cfg-options`.
    """
    node = function(path, node)
    if isinstance(node, dict):
        return {key: map_values(value, function, f'{path}.{key}' if path else key) for key, value in node.items()}
    if isinstance(node, list):
        return [map_values(value, function, f'{path}.{index}') for index, value in enumerate(node)]
    return node


def is_one_of(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
