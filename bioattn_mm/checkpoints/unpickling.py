"""Reading checkpoint files without running the code that they may contain.

A checkpoint is a pickle, and a pickle is a program: unpickling a prepared file runs whatever its author wanted.
PyTorch's `weights_only` unpickler builds tensors and plain containers alone, and refuses every other class that it is
not told of. What mmengine writes beside the weights needs a few, listed here.
"""

import argparse
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

# PyTorch's own switches. The first makes every torch.load a safe one, even where the caller says weights_only=False,
# as mmengine does after a refusal; the second lets callers decide.
REFUSE, TRUST = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'

# What to say of a file with a class that is refused.
HOLDS_CODE = (
    'holds more than weights: {}, which is none of the classes that mmengine writes and may run code when it is '
    'read; if you trust where the file comes from, add --trust-checkpoint'
)

_STATISTICS = ('mean', 'max', 'min', 'current')


def _statistic_of_history(owner: object, name: str) -> Callable:
    """What `getattr` is allowed to be in a checkpoint: a `HistoryBuffer` names its statistics by it."""
    if owner is not HistoryBuffer or name not in _STATISTICS:
        raise pickle.UnpicklingError(f'Unsupported global: GLOBAL getattr({owner!r}, {name!r})')
    return getattr(HistoryBuffer, name)


def _allowed() -> list:
    """mmengine's history of logged values and its configs, and the NumPy arrays and numbers that its hooks keep.

    And the arguments of a training script, which released ImageNet files keep beside the weights: a plain container.
    """
    multiarray = np._core.multiarray if hasattr(np, '_core') else np.core.multiarray
    allowed = [HistoryBuffer, (_statistic_of_history, 'builtins.getattr'), ConfigDict, argparse.Namespace]
    allowed += [np.ndarray, np.dtype]
    allowed += [type(np.dtype(code)) for code in '?bBhHiIlLqQefdSU']
    for name in ('scalar', '_reconstruct'):
        # The module's name in files that were written under NumPy 1 and under NumPy 2.
        allowed += [(getattr(multiarray, name), f'numpy.{core}.multiarray.{name}') for core in ('core', '_core')]
    return allowed


@contextmanager
def code_refused() -> Iterator[None]:
    """Context in which every `torch.load` refuses classes that are not mmengine's, NumPy's or PyTorch's own.

    Inside, `trust_checkpoints` lifts this, until the end of the outermost context.
    """
    before = {name: os.environ.get(name) for name in (REFUSE, TRUST)}
    if before[TRUST] is None:
        os.environ[REFUSE] = '1'
    # PyTorch's context would, inside another one, take away at its end what the outer one allows.
    known = torch.serialization.get_safe_globals()
    try:
        with torch.serialization.safe_globals([item for item in _allowed() if item not in known]):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def trust_checkpoints() -> None:
    """Let checkpoints contain any class, whose code runs while they are read."""
    os.environ.pop(REFUSE, None)
    os.environ[TRUST] = '1'


def refused_class(error: Exception) -> str | None:
    """The class or function because of which a file was refused, by PyTorch's message; None for another error."""
    found = (
        re.search(r'GLOBAL ([\w.]+(?:\(.*?\))?)', str(error)) if isinstance(error, pickle.UnpicklingError) else None
    )
    return found and found[1]
