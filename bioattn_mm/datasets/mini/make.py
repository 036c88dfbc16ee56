"""Writes the miniature datasets to disk.

A dataset is written to a temporary folder and moved into place when complete. Only miniatures are ever replaced.
"""

import json
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...errors import InputError
from ...files import read_json
from ..parallel import run_all
from . import ade20k, coco, imagenet

MANIFEST = 'miniature.json'
FORMAT_VERSION = 3  # raise it when the same arguments give other files than before
WRITERS = {
    'ade20k': (ade20k.write_ade20k, ade20k.SPLITS),
    'coco': (coco.write_coco, coco.SPLITS),
    'imagenet': (imagenet.write_imagenet, imagenet.SPLITS),
}
FOLDERS = {'ade20k': ade20k.FOLDER, 'coco': coco.FOLDER, 'imagenet': imagenet.FOLDER}
REMAKE = '`tools/make_mini_datasets.py --overwrite`'


def make_mini_datasets(
    out_dir: str | Path,
    num_train: int = 240,
    num_val: int = 40,
    seed: int = 0,
    progress: bool = True,
    overwrite: bool = False,
    names: Collection[str] = tuple(FOLDERS),
) -> dict[str, Path]:
    """Draw a miniature ADE20K, a miniature COCO 2017 and a miniature ImageNet, unless they exist already.

    The same arguments give the same bytes.

    Args:
        out_dir: Where the folders `ADEChallengeData2016`, `coco` and `imagenet` are created.
        num_train: Training images of each dataset, at least 1.
        num_val: Validation images of each dataset, at least 1.
        seed: Chooses the scenes, at least 0.
        progress: Whether to print what happens, with a progress bar on standard error.
        overwrite: Whether to replace existing miniatures. Other folders are never replaced.
        names: Which of them: some of 'ade20k', 'coco' and 'imagenet'.

    Returns:
        dict[str, Path]: The folders by these names.

    Raises:
        InputError: An argument is out of range, or one of the folders exists and holds something else.
    """
    for name, value, least in (('num_train', num_train, 1), ('num_val', num_val, 1), ('seed', seed, 0)):
        if value < least:
            raise InputError(f'{name} is {value}: it must be at least {least}')
    out_dir = Path(out_dir)
    manifest = {'format': FORMAT_VERSION, 'num_train': num_train, 'num_val': num_val, 'seed': seed}
    folders = {name: out_dir / FOLDERS[name] for name in names}
    # Check all folders before writing any.
    to_make = [name for name, folder in folders.items() if needs_making(folder, manifest, overwrite)]
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        write, splits = WRITERS[name]
        if name in to_make:
            make_folder(folder, manifest, write, dict(zip(splits, (num_train, num_val))), progress, overwrite)
        elif progress:
            print(f'{folder} exists already')
    return folders


def needs_making(folder: Path, manifest: dict, overwrite: bool) -> bool:
    """Whether a folder has to be made, or made again.

    Raises:
        InputError: The folder holds something else than the requested miniature and may not be replaced.
    """
    if not folder.exists():
        return True
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f'{folder} was not made by this tool (it has no {MANIFEST}) and is not replaced: choose another '
            'output folder'
        )
    if overwrite:
        return True
    found, num_files = read_manifest(folder)
    if found != manifest:
        differences = ', '.join(
            f'{key} {found.get(key)} instead of {value}' for key, value in manifest.items() if found.get(key) != value
        )
        raise InputError(
            f'{folder} holds another miniature ({differences}): choose another output folder or replace it with '
            f'{REMAKE}'
        )
    if count_files(folder) < num_files:
        raise InputError(f'{folder} lacks some of its {num_files} files: make it again with {REMAKE}')
    return False


def read_manifest(folder: Path) -> tuple[dict, int]:
    """Read the manifest of a miniature: the arguments that it was made with, and its number of files.

    Raises:
        InputError: The manifest is damaged.
    """
    found = read_json(folder / MANIFEST, f'make the miniature again with {REMAKE}', num_files=int)
    num_files = found.pop('num_files')
    return found, num_files


def is_outdated(folder: Path) -> bool:
    """Whether a folder holds a miniature that another version of this package drew, with other images."""
    return (folder / MANIFEST).is_file() and read_manifest(folder)[0].get('format') != FORMAT_VERSION


def make_folder(
    folder: Path,
    manifest: dict,
    write: Callable,
    num_images: dict[str, int],
    progress: bool,
    overwrite: bool,
) -> None:
    """Write one dataset to a temporary folder beside `folder`, and move it there."""
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        tempfile.TemporaryDirectory(prefix=f'.{folder.name}-', dir=folder.parent) as temporary,
        Progress(*columns, console=Console(stderr=True), disable=not progress) as bar,
    ):
        task = bar.add_task(f'drawing {folder}', total=sum(num_images.values()))

        complete = Path(temporary) / folder.name
        complete.mkdir()
        write(complete, num_images, manifest['seed'], partial(run_all, advance=partial(bar.advance, task)))
        with_count = {**manifest, 'num_files': count_files(complete)}
        (complete / MANIFEST).write_text(json.dumps(with_count, indent=2) + '\n', encoding='utf-8')
        # Another process, such as another rank of a distributed run, may have made it in the meantime.
        if needs_making(folder, manifest, overwrite):
            if folder.exists():
                folder.rename(Path(temporary) / 'replaced')
            complete.rename(folder)


def count_files(folder: Path) -> int:
    """Number of files below a folder except the manifest."""
    return sum(path.is_file() and path.name != MANIFEST for path in folder.rglob('*'))
