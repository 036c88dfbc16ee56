"""Writing of files and folders: names that are free, and contents that are complete when they have their name."""

import functools
import itertools
import json
import math
import os
import shutil
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError

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
    """Context with a temporary path to write a file or folder at, which is flushed to disk and renamed to `path`.

    After an exception what was written is removed, and an older `path` stays as it was.
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
def atomic_folder(path: Path) -> Iterator[Path]:
    """Context with a new folder to write into, which becomes `path` as in `atomic_path`; for one process alone."""
    with atomic_path(path) as partial:
        remove(partial)
        partial.mkdir()
        yield partial


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Context with a binary file to write into, which becomes `path` as in `atomic_path`."""
    with atomic_path(path) as partial, partial.open('wb') as file:
        yield file


def write_json(path: Path, document: object, indent: int | None = 1) -> None:
    """Write a JSON file atomically, with null for NaN and infinity, which JSON does not have."""
    with atomic_write(path) as file:
        file.write((json.dumps(without_nan(document), indent=indent, allow_nan=False) + '\n').encode())


def read_json(path: Path, what_to_do: str, **kinds: type) -> dict:
    """Read an object of JSON that a tool has written.

    Args:
        path: The file.
        what_to_do: If it is damaged, for the message of the `InputError`.
        **kinds: The entries that it must have, and what they are.
    """
    try:
        document = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise InputError(f'{path} is damaged, {error}: {what_to_do}') from error
    if not isinstance(document, dict):
        raise InputError(f'{path} is damaged, it holds no object: {what_to_do}')
    check_entries(path, document, what_to_do, **kinds)
    return document


def check_entries(path: Path, document: dict, what_to_do: str, **kinds: type) -> None:
    """Raise an `InputError` if an object of JSON lacks an entry or has a wrong one, see `read_json`."""
    wrong = [name for name, kind in kinds.items() if not isinstance(document.get(name), kind)]
    if wrong:
        what = {dict: 'an object', list: 'a list', str: 'a text', int: 'a whole number'}[kinds[wrong[0]]]
        raise InputError(f'{path} is damaged, it has no {wrong[0]} that is {what}: {what_to_do}')


def without_nan(node: object) -> object:
    """What JSON can hold of dicts, lists and numbers: with None for NaN and infinity."""
    if isinstance(node, dict):
        return {key: without_nan(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [without_nan(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


def other_spelling(path: Path) -> str:
    """For messages of a missing file: a name beside it that differs in capitals or in the Unicode form of accents."""
    try:
        found = _spellings(path.parent, path.parent.stat().st_mtime_ns).get(_as_it_looks(path.name))
    except OSError:
        return ''
    return f'there is {ascii(found)}, spelt in another way than {ascii(path.name)}' if found else ''


@functools.lru_cache(maxsize=8)
def _spellings(folder: Path, _: int) -> dict[str, str]:
    """The names in a folder by how they look; read again when the folder has changed."""
    return {_as_it_looks(name): name for name in os.listdir(folder)}


def _as_it_looks(name: str) -> str:
    return unicodedata.normalize('NFC', name).casefold()


def unique_name(path: str, taken: Collection[str]) -> str:
    """Name for a file: its own without suffix, with its folder if it is taken, numbered if that is taken too."""
    name = Path(path).stem
    if name not in taken:
        return name
    name = f'{Path(path).resolve().parent.name}/{name}'
    numbered = (f'{name} ({number})' for number in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def check_new_file(path: str) -> Path:
    """The path of a file to write; an `InputError` if it exists."""
    out = Path(path)
    if out.exists():
        raise InputError(f'{out} is there already: name another file')
    return out


def check_new(path: str, option: str) -> Path:
    """The path of something to write; an `InputError` naming an option if it exists, except as an empty folder."""
    out = Path(path)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f'{path} is there already and not empty: name another folder for {option}')
    return out
