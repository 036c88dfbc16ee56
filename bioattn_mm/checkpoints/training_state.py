"""The state of a training beside the weights: whether what a checkpoint says of it can be gone on with."""

import math
from collections.abc import Iterator, Mapping

from torch import Tensor

from ..errors import InputError
from .files import check_values


def check_training_state(path: str, checkpoint: Mapping, values: bool = True) -> None:
    """Raise an `InputError` unless a checkpoint has what a training needs to go on as if nothing had been.

    `path` is the file, for the message. Without `values` the tensors have shapes alone, and no values to be checked.
    """
    meta = checkpoint.get('meta')
    absent = [name for name in ('optimizer', 'message_hub') if not isinstance(checkpoint.get(name), dict)]
    has_progress = isinstance(meta, dict) and 'iter' in meta and 'epoch' in meta
    if absent or not has_progress:
        lacks = f' (it lacks {" and ".join(absent)})' if has_progress else ''
        raise InputError(
            f'{path} holds weights but no state of a training{lacks}: to start from them, leave out --resume and add '
            f'--load-from {path}'
        )
    names = ('optimizer', 'param_schedulers', 'ema_state_dict')
    state = dict(_leaves({name: checkpoint.get(name) for name in names}))
    for name, value in state.items():
        if isinstance(value, float) and math.isnan(value):
            raise InputError(f'{path} cannot be resumed from: {name} is NaN; take another checkpoint of the training')
    if values:
        check_values(path, {name: value for name, value in state.items() if isinstance(value, Tensor)})


def _leaves(node: object, name: str = '') -> Iterator[tuple[str, object]]:
    """What is in dicts and lists, with its path."""
    if not isinstance(node, (dict, list, tuple)):
        yield name, node
        return
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _leaves(child, f'{name}.{key}' if name else str(key))
