"""Makes the miniature datasets on disk: whole or not at all, and never over anything else."""

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...errors import InputError
from . import ade20k, coco

MANIFEST = 'miniature.json'
FORMAT_VERSION = 1  # to be raised when the same seed gives other files than before


def make_mini_datasets(
    out_dir: str | Path,
    num_train: int = 240,
    num_val: int = 40,
    seed: int = 0,
    progress: bool = True,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Draw a miniature ADE20K and a miniature COCO 2017, unless they are there already.

    The same arguments give the same bytes. A dataset is written beside its place and moved there when whole.

    Args:
        out_dir (str | Path): Gets the folders `ADEChallengeData2016` and `coco`.
        num_train (int): Training images of each dataset.
        num_val (int): Validation images of each dataset.
        seed (int): Chooses the scenes, at least 0.
        progress (bool): Whether to say what happens, with a progress bar on standard error.
        overwrite (bool): Whether to make miniatures again that are there. Other folders are never touched.

    Returns:
        dict[str, Path]: The folders of 'ade20k' and 'coco'.

    Raises:
        InputError: An argument is out of range, or a folder is in the way.
    """
    for name, value, least in (('num_train', num_train, 1), ('num_val', num_val, 1), ('seed', seed, 0)):
        if value < least:
            raise InputError(f'{name} is {value}: it must be at least {least}')
    out_dir = Path(out_dir)
    manifest = {'format': FORMAT_VERSION, 'num_train': num_train, 'num_val': num_val, 'seed': seed}
    writers = {
        out_dir / ade20k.FOLDER: (ade20k.write_ade20k, dict(zip(ade20k.SPLITS, (num_train, num_val)))),
        out_dir / coco.FOLDER: (coco.write_coco, dict(zip(coco.SPLITS, (num_train, num_val)))),
    }
    # Both folders are judged before either is written.
    to_make = [folder for folder in writers if is_to_be_made(folder, manifest, overwrite)]
    out_dir.mkdir(parents=True, exist_ok=True)
    for folder, (write, num_images) in writers.items():
        if folder in to_make:
            make_folder(folder, manifest, write, num_images, progress, overwrite)
        elif progress:
            print(f'{folder} is there already')
    return dict(zip(('ade20k', 'coco'), writers))


def is_to_be_made(folder: Path, manifest: dict, overwrite: bool) -> bool:
    """Whether a folder is to be made.

    Raises:
        InputError: Something else than the wanted miniature is at its place and may not be replaced.
    """
    if not folder.exists():
        return True
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f'{folder} is no miniature made by this tool (it has no {MANIFEST}) and is left as it is: '
            'choose another output folder'
        )
    if overwrite:
        return True
    try:
        found = json.loads((folder / MANIFEST).read_text())
        num_files = found.pop('num_files')
    except (ValueError, KeyError) as error:
        raise InputError(f'{folder / MANIFEST} cannot be read: move {folder} away') from error
    if found != manifest:
        differences = ', '.join(
            f'{key} {found.get(key)} instead of {value}' for key, value in manifest.items() if found.get(key) != value
        )
        raise InputError(
            f'{folder} holds another miniature ({differences}): choose another output folder '
            'or make it again with `tools/make_mini_datasets.py --overwrite`'
        )
    if count_files(folder) < num_files:
        raise InputError(
            f'{folder} lacks some of its {num_files} files: make it again with '
            '`tools/make_mini_datasets.py --overwrite`'
        )
    return False


def make_folder(
    folder: Path,
    manifest: dict,
    write: Callable,
    num_images: dict[str, int],
    progress: bool,
    overwrite: bool,
) -> None:
    """Write one dataset beside `folder` and move it there."""
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        tempfile.TemporaryDirectory(prefix=f'.{folder.name}-', dir=folder.parent) as temporary,
        Progress(*columns, console=Console(stderr=True), disable=not progress) as bar,
    ):
        task = bar.add_task(f'drawing {folder}', total=sum(num_images.values()))

        def draw_all(write_one, count):
            results = []
            # NumPy and OpenCV free the interpreter lock while they draw; more threads would wait for it.
            with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
                try:
                    for result in pool.map(write_one, range(count)):
                        results.append(result)
                        bar.advance(task)
                finally:
                    pool.shutdown(cancel_futures=True)  # an interrupt does not wait for all images
            return results

        whole = Path(temporary) / folder.name
        whole.mkdir()
        write(whole, num_images, manifest['seed'], draw_all)
        with_count = {**manifest, 'num_files': count_files(whole)}
        (whole / MANIFEST).write_text(json.dumps(with_count, indent=2) + '\n')
        # Another process, such as the second one of a distributed run, may have been faster.
        if is_to_be_made(folder, manifest, overwrite):
            if folder.exists():
                folder.rename(Path(temporary) / 'replaced')
            whole.rename(folder)


def count_files(folder: Path) -> int:
    """Number of files below a folder, without the manifest."""
    return sum(path.is_file() and path.name != MANIFEST for path in folder.rglob('*'))
