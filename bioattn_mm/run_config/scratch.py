"""Training from random weights, for which the configs' own learning rates are too low."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from mmengine.config import Config

# Random weights need higher rates than the configs', which fine-tune. Decoders with queries take a lower one than
# others, and so do classifiers, which have hardly anything but the backbone.
LEARNING_RATE = 1e-3
CLASSIFICATION_LEARNING_RATE = 4e-4
QUERY_LEARNING_RATE = 2e-4
QUERY_HEADS = ('decode_head', 'panoptic_head')  # of Mask2Former in mmseg and in mmdet
# A backbone that knows nothing yet learns as fast as the rest of the model.
RATE_FACTORS = ('optim_wrapper.paramwise_cfg.*.lr_mult', 'optim_wrapper.paramwise_cfg.layer_decay_rate')


def start_from_scratch(config: Config) -> None:
    """Let a config train from random weights, with one learning rate for all parameters.

    The rate is 1e-3, of models with queries 2e-4, of classifiers 4e-4, whatever the batch: found with the miniature
    runs' 2 images a step (classifiers: 16). For other batches, or many epochs, it is a beginning.

    Args:
        config: Changed in place: initial weights, learning rates and `auto_scale_lr`.
    """
    model = config.model
    model.pop('pretrained', None)
    model.backbone.init_cfg = None
    if isinstance(model.get('init_cfg'), dict) and model.init_cfg.get('type') == 'Pretrained':
        model.init_cfg = None
    changed = map_values(config.optim_wrapper.to_dict(), _without_factor, 'optim_wrapper')
    config.optim_wrapper.update(changed)
    if 'auto_scale_lr' in config:
        config.auto_scale_lr.enable = False
    has_queries = 'num_queries' in model or any('num_queries' in model.get(key, {}) for key in QUERY_HEADS)
    rate = CLASSIFICATION_LEARNING_RATE if config.default_scope == 'mmpretrain' else LEARNING_RATE
    config.optim_wrapper.optimizer.lr = QUERY_LEARNING_RATE if has_queries else rate


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
