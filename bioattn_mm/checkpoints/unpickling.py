"""Reading checkpoint files without running the code that they may contain.

A checkpoint is a pickle, and unpickling a malicious file can run any code. PyTorch's `weights_only` unpickler builds
tensors and plain containers and refuses every other class that it was not told to allow. The few classes that
mmengine writes beside the weights are allowed here.
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

# PyTorch's environment variables. The first makes every torch.load a safe one, even with weights_only=False, which
# mmengine passes after a refusal; the second leaves it to the caller.
REFUSE, TRUST = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'

# Error message for a file with a refused class.
HOLDS_CODE = (
    'holds more than weights: {}, which is not a class that mmengine writes and may run code when it is read; '
    'if you trust the source of the file, add --trust-checkpoint'
)

_STATISTICS = ('mean', 'max', 'min', 'current')


def _statistic_of_history(owner: object, name: str) -> Callable:
    """Replacement of `getattr` in checkpoints; pickles of `HistoryBuffer` name the buffer's statistics with it."""
    if owner is not HistoryBuffer or name not in _STATISTICS:
        raise pickle.UnpicklingError(f'Unsupported global: GLOBAL getattr({owner!r}, {name!r})')
    return getattr(HistoryBuffer, name)


def _allowed() -> list:
    """The allowed classes: mmengine's logged values and configs, NumPy arrays and numbers, and argparse's Namespace.

    Hooks keep NumPy numbers in checkpoints; released ImageNet files contain the arguments of the training script.
    """
    multiarray = np._core.multiarray if hasattr(np, '_core') else np.core.multiarray
    allowed = [HistoryBuffer, (_statistic_of_history, 'builtins.getattr'), ConfigDict, argparse.Namespace]
    allowed += [np.ndarray, np.dtype]
    allowed += [type(np.dtype(code)) for code in '?bBhHiIlLqQefdSU']
    for name in ('scalar', '_reconstruct'):
        # Files written with NumPy 1 and with NumPy 2 name the module differently.
        allowed += [(getattr(multiarray, name), f'numpy.{core}.multiarray.{name}') for core in ('core', '_core')]
    return allowed


@contextmanager
def code_refused() -> Iterator[None]:
    """Context in which every `torch.load` refuses classes that are not among the allowed ones.

    `trust_checkpoints` called inside lifts this until the end of the outermost context.
    """
    before = {name: os.environ.get(name) for name in (REFUSE, TRUST)}
    if before[TRUST] is None:
        os.environ[REFUSE] = '1'
    # At its end PyTorch's context removes all that it added, also what an outer context had allowed before.
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
    """Allow any class in checkpoints; its code may run while they are read."""
    os.environ.pop(REFUSE, None)
    os.environ[TRUST] = '1'


def refused_class(error: Exception) -> str | None:
    """The refused class or function that PyTorch's error message names; None for another error."""
    found = (
        re.search(r'GLOBAL ([\w.]+(?:\(.*?\))?)', str(error)) if isinstance(error, pickle.UnpicklingError) else None
    )
    return found and found[1]
