"""Writing of files and folders: names that are free, and contents that are complete when they have their name."""

import itertools
import json
import math
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import InputError

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


def write_json(path: Path, document: object, indent: int | None = 1) -> None:
    """Write a JSON file atomically, with null for NaN and infinity, which JSON does not have."""
    with atomic_write(path) as file:
        file.write((json.dumps(without_nan(document), indent=indent, allow_nan=False) + '\n').encode())


def without_nan(node: object) -> object:
    """What JSON can hold of dicts, lists and numbers: with None for NaN and infinity."""
    if isinstance(node, dict):
        return {key: without_nan(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [without_nan(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


def unique_name(path: str, taken: Collection[str]) -> str:
    """Name for a file: its own without suffix, with its folder if it is taken, numbered if that is taken too."""
    name = Path(path).stem
    if name not in taken:
        return name
    name = f'{Path(path).resolve().parent.name}/{name}'
    numbered = (f'{name} ({number})' for number in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def check_new_file(path: str) -> Path:
    """The path of a file to write, which must not exist.

    Raises:
        InputError: It exists.
    """
    out = Path(path)
    if out.exists():
        raise InputError(f'{out} is there already: name another file')
    return out


def check_new(path: str, option: str) -> Path:
    """The path of something to write, which must not exist, except as an empty folder.

    Args:
        path: The path.
        option: The option that it is the value of, for the message.

    Raises:
        InputError: It exists.
    """
    out = Path(path)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f'{path} is there already and not empty: name another folder for {option}')
    return out
