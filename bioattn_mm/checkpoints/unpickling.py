"""Reading checkpoint files without running the code that they may contain, and not if they are damaged.

A checkpoint is a pickle, and unpickling a malicious file can run any code. PyTorch's `weights_only` unpickler builds
tensors and plain containers and refuses every other class that it was not told to allow. The few classes that
mmengine writes beside the weights are allowed here.

The pickle and the tensors are members of a zip file, whose checksums PyTorch writes and does not compare when it
reads. They are compared here, once a file and process, in about 0.3 s for 400 MB.
"""

import argparse
import functools
import io
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

from ..errors import InputError

# PyTorch's environment variables. The first makes every torch.load a safe one, even with weights_only=False, which
# mmengine passes after a refusal; the second leaves it to the caller.
REFUSE, TRUST = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'

HOLDS_CODE = (
    'holds more than weights: {}, which is not a class that mmengine writes and may run code when it is read; '
    'if you trust the source of the file, add --trust-checkpoint'
)


def _statistic_of_history(owner: object, name: str) -> Callable:
    """Replacement of `getattr` in checkpoints; pickles of `HistoryBuffer` name the buffer's statistics with it."""
    if owner is not HistoryBuffer or name not in ('mean', 'max', 'min', 'current'):
        raise pickle.UnpicklingError(f'Unsupported global: GLOBAL getattr({owner!r}, {name!r})')
    return getattr(HistoryBuffer, name)


# mmengine's logged values and configs; NumPy's arrays and numbers, which hooks keep, under the names of its modules
# in versions 1 and 2; and the arguments of the training script, which released ImageNet files have.
ALLOWED = [HistoryBuffer, (_statistic_of_history, 'builtins.getattr'), ConfigDict, argparse.Namespace]
ALLOWED += [np.ndarray, np.dtype, *(type(np.dtype(code)) for code in '?bBhHiIlLqQefdSU')]
_multiarray = np._core.multiarray if hasattr(np, '_core') else np.core.multiarray
for _name in ('scalar', '_reconstruct'):
    ALLOWED += [(getattr(_multiarray, _name), f'numpy.{core}.multiarray.{_name}') for core in ('core', '_core')]


@contextmanager
def code_refused() -> Iterator[None]:
    """Context in which every `torch.load` refuses damaged files, and classes that are not among the allowed ones.

    `trust_checkpoints` called inside allows all classes until the end of the outermost context.
    """
    load = torch.load
    before = {name: os.environ.get(name) for name in (REFUSE, TRUST)}
    if before[TRUST] is None:
        os.environ[REFUSE] = '1'
    if not hasattr(load, 'compares_checksums'):  # else this context is inside of another one
        torch.load = _load_if_whole(load)
    try:
        yield
    finally:
        torch.load = load
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
    found = re.search(r'GLOBAL ([\w.]+(?:\(.*?\))?)', str(error))
    return found[1] if found and isinstance(error, pickle.UnpicklingError) else None


def _load_if_whole(load: Callable) -> Callable:
    """`torch.load`, which compares the checksums of a file first."""

    @functools.wraps(load)
    def load_if_whole(f: str | os.PathLike | BinaryIO, *args: object, **kwargs: object) -> object:
        if isinstance(f, (str, os.PathLike)):
            status = os.stat(f)
            _check_path(Path(f), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        else:
            # The views of PyTorch's sharded checkpoints cannot be read from their ends, as zip files are.
            start = f.tell()
            _check_checksums(io.BytesIO(f.read()), getattr(f, 'name', 'a part of a checkpoint'))
            f.seek(start)
        # Each load allows them anew: PyTorch takes them back when the context in which mmengine reads ends.
        torch.serialization.add_safe_globals(ALLOWED)
        return load(f, *args, **kwargs)

    load_if_whole.compares_checksums = True
    return load_if_whole


@functools.lru_cache(maxsize=64)
def _check_path(path: Path, *_: int) -> None:
    """Compare the checksums of a file once while its size and its time stay, as tools read it several times."""
    with path.open('rb') as file:
        _check_checksums(file, path)


def _check_checksums(file: BinaryIO, name: object) -> None:
    """Raise an `InputError` if a checksum of a zip file does not fit; files of other formats have none."""
    if file.read(4) != b'PK\x03\x04':
        return
    try:
        with zipfile.ZipFile(file) as members:
            # `torch.serialization.set_crc32_options(False)` leaves them out.
            damaged = members.testzip() if any(member.CRC for member in members.infolist()) else None
    except Exception as error:
        raise InputError(f'cannot read the checkpoint {name}: it is damaged or cut off; get it again') from error
    if damaged is not None:
        raise InputError(
            f'cannot read the checkpoint {name}: it is damaged, the checksum of {damaged} does not fit; get it again'
        )
