"""Files and folders that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Ending of what is being written.
PARTIAL = '.part'


def partial_path(path: Path) -> Path:
    """Where something is until all of it is written: beside its place, hidden."""
    return path.with_name(f'.{path.name}{PARTIAL}')


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Context with a file to write into, which gets its name once all of it is on the disk.

    An exception inside, or of the file system, leaves what was there as it was.

    Args:
        path: The file, in a folder that is there.
    """
    partial = partial_path(path)
    try:
        with partial.open('wb') as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
