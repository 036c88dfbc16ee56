"""Atomic writing of files and folders: they have their name only when they are complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Suffix of what is being written.
PARTIAL = '.part'


def partial_path(path: Path) -> Path:
    """Where a file or folder is written before it gets its name: hidden, in the same folder."""
    return path.with_name(f'.{path.name}{PARTIAL}')


def remove(path: Path) -> None:
    """Remove a file or a folder with its content, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Context with a temporary path to write at; what is written there is flushed to disk and renamed to `path`.

    After an exception what was written is removed, and an older `path` stays as it was.

    Args:
        path: A file or folder, in a folder that exists.
    """
    partial = partial_path(path)
    try:
        yield partial
        for file in (partial, *partial.rglob('*')):
            if file.is_file():
                with file.open('rb') as written:
                    os.fsync(written.fileno())
        if path.is_dir():
            # A folder cannot be replaced unless it is empty, and removing it first would leave none for a while.
            older = path.rename(partial_path(path.with_name(f'older_{path.name}')))
            partial.replace(path)
            remove(older)
        else:
            partial.replace(path)
    finally:
        remove(partial)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Context with a binary file to write into, which becomes `path` as in `atomic_path`."""
    with atomic_path(path) as partial, partial.open('wb') as file:
        yield file
