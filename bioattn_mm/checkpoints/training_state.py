"""The state of a training beside the weights: whether what a checkpoint says of it can be gone on with."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from mmengine.logging import HistoryBuffer
from torch import Tensor

from ..errors import InputError
from .files import check_values

# Numbers that the hook of the checkpoints keeps, by how their names begin, see `AtomicCheckpointHook`.
BEST_SCORE, BEST_PATH, KEPT, LAST = 'best_score', 'best_ckpt', 'keep_ckpt_ids', 'last_ckpt'

# Entries of an optimizer's groups that hold rates.
RATES = {'lr', 'initial_lr'}


def check_training_state(path: str, checkpoint: Mapping, values: bool = True) -> None:
    """Raise an `InputError` unless a checkpoint has what a training needs to go on as if nothing had been.

    Args:
        path: The file, for the message.
        checkpoint: Its content.
        values: Whether the tensors have values to be checked, and not shapes alone.
    """
    meta = checkpoint.get('meta')
    absent = [name for name in ('optimizer', 'message_hub') if name not in checkpoint]
    has_progress = isinstance(meta, dict) and 'iter' in meta and 'epoch' in meta
    if absent or not has_progress:
        lacks = f' (it lacks {" and ".join(absent)})' if has_progress else ''
        raise InputError(
            f'{path} holds weights but no state of a training{lacks}: to start from them, leave out --resume and add '
            f'--load-from {path}'
        )
    try:
        problem = next(_problems(checkpoint), None)
    except RecursionError:
        problem = 'a part of it contains itself'
    if problem is not None:
        raise InputError(f'{path} cannot be resumed from: {problem}; take another checkpoint of the training')
    if values:
        states = dict(optimizer=checkpoint['optimizer'], ema_state_dict=checkpoint.get('ema_state_dict'))
        check_values(path, {name: value for name, value in _leaves(states) if isinstance(value, Tensor)})


def _problems(checkpoint: Mapping) -> Iterator[str]:
    """What is not as mmengine writes it."""
    meta = checkpoint['meta']
    for name in ('iter', 'epoch'):
        if not _is_count(meta[name]):
            yield f'{name} of its meta is {meta[name]!r:.40}, expected a whole number from 0 on'
    seed = meta.get('seed')
    if seed is not None and not (_is_count(seed) and seed < 2**32):
        yield f'seed of its meta is {seed!r:.40}, expected a whole number from 0 to 4294967295'
    for name, kinds in (('optimizer', dict), ('param_schedulers', (list, dict)), ('ema_state_dict', dict)):
        if name in checkpoint and not isinstance(checkpoint[name], kinds):
            yield f'{name} is of type {type(checkpoint[name]).__name__}, and training writes another'
    for name, value in _leaves(dict(checkpoint, state_dict=None, message_hub=None)):
        if isinstance(value, float) and math.isnan(value):
            yield f'{name} is NaN'
        parts = name.split('.')
        if parts[0] != 'optimizer' or RATES.isdisjoint(parts) or isinstance(value, Tensor):
            continue
        if parts[-1] not in RATES or not (_is_number(value) and 0 <= value < math.inf):
            yield f'{name} is {value!r:.40}, expected a number from 0 on'
    yield from _problems_of_hub(checkpoint['message_hub'])


def _problems_of_hub(hub: object) -> Iterator[str]:
    """What is not as mmengine writes it in the state of its message hub."""
    parts = ('log_scalars', 'runtime_info', 'resumed_keys')
    if not isinstance(hub, dict) or not all(isinstance(hub.get(part), dict) for part in parts):
        yield f'message_hub has not the dicts {", ".join(parts)}'
        return
    for name, history in hub['log_scalars'].items():
        values = [getattr(history, part, None) for part in ('_log_history', '_count_history')]
        if not isinstance(history, HistoryBuffer) or not all(_is_row(value) for value in values):
            yield f'{name!r} in message_hub is no history of numbers'
        elif len(values[0]) != len(values[1]) or not _is_count(getattr(history, 'max_length', None)):
            yield f'{name!r} in message_hub is no whole history of numbers'
    for name, value in hub['runtime_info'].items():
        name = str(name)
        if name.startswith(BEST_SCORE) and not (_is_number(value) and not math.isnan(value)):
            yield f'{name} in message_hub is {value!r:.40}, expected a number'
        if name.startswith((BEST_PATH, LAST)) and not isinstance(value, (str, type(None))):
            yield f'{name} in message_hub is {value!r:.40}, expected the path of a checkpoint'
        if name == KEPT and not (isinstance(value, list) and all(_is_count(number) for number in value)):
            yield f'{name} in message_hub is {value!r:.40}, expected a list of whole numbers'


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0 and value == int(value)


def _is_row(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in 'fiu'


def _leaves(node: object, name: str = '') -> Iterator[tuple[str, object]]:
    """What is in dicts and lists, with its path."""
    if not isinstance(node, (dict, list, tuple)):
        yield name, node
        return
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _leaves(child, f'{name}.{key}' if name else str(key))
