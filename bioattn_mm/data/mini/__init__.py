"""Miniature ADE20K, COCO and ImageNet, drawn by program in the on-disk formats of the real datasets."""

import tempfile
from collections.abc import Collection
from functools import partial
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from ...errors import InputError
from ...runtime.files import read_json, write_json
from ..image_files import in_threads

MANIFEST = 'miniature.json'
FORMAT_VERSION = 4  # raise it when the same arguments give other images or annotations than before
# The folder of each dataset, as the real archives unpack. The module of its name has the splits, writes images, and
# then what a split has beside them. It is imported where it draws: torchvision's detectors take two seconds.
FOLDERS = {'ade20k': 'ADEChallengeData2016', 'coco': 'coco', 'imagenet': 'imagenet'}


def make_mini_datasets(
    out_dir: str | Path,
    num_train: int = 240,
    num_val: int = 40,
    seed: int = 0,
    progress: bool = True,
    names: Collection[str] = tuple(FOLDERS),
) -> dict[str, Path]:
    """Draw a miniature ADE20K, COCO 2017 and ImageNet, unless they exist: the same arguments give the same bytes.

    Args:
        out_dir: Where the folders `ADEChallengeData2016`, `coco` and `imagenet` are created.
        num_train, num_val: Training and validation images of each dataset, at least 1.
        seed: Chooses the scenes, at least 0.
        progress: Whether to print what happens, with a progress bar on standard error.
        names: Which of them, and the keys of the folders that are returned.
    """
    for name, value, least in (('num_train', num_train, 1), ('num_val', num_val, 1), ('seed', seed, 0)):
        if value < least:
            raise InputError(f'{name} is {value}: it must be at least {least}')
    out_dir = Path(out_dir)
    manifest = {'format': FORMAT_VERSION, 'num_train': num_train, 'num_val': num_val, 'seed': seed}
    folders = {name: out_dir / FOLDERS[name] for name in names}
    # Check all folders before writing any.
    to_make = [name for name, folder in folders.items() if needs_making(folder, manifest)]
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        if name not in to_make:
            if progress:
                print(f'{folder} exists already')
            continue
        dataset = import_module(f'{__name__}.{name}')
        with (  # the folder is moved into place when it is complete
            tempfile.TemporaryDirectory(prefix=f'.{folder.name}-', dir=folder.parent) as temporary,
            Progress(console=Console(stderr=True), disable=not progress) as bar,
        ):
            complete = Path(temporary) / folder.name
            for split, count in zip(dataset.SPLITS, (num_train, num_val)):
                written = in_threads(partial(dataset.write_image, complete, split, seed), range(count))
                entries = list(bar.track(written, count, description=f'drawing {folder}, {split}'))
                dataset.write_annotations(complete, split, entries)
            write_json(complete / MANIFEST, manifest)
            # Another process, such as another rank of a distributed run, may have made it in the meantime.
            if needs_making(folder, manifest):
                complete.rename(folder)
    return folders


def needs_making(folder: Path, manifest: dict) -> bool:
    """Whether a folder has to be made; an `InputError` if it holds something else than the miniature."""
    found = read_manifest(folder) if folder.exists() else manifest
    if others := [
        f'{key} {found.get(key)} instead of {value}' for key, value in manifest.items() if found.get(key) != value
    ]:
        raise InputError(
            f'{folder} holds something else than this miniature ({", ".join(others)}): choose another output folder, '
            'or remove it'
        )
    return not folder.exists()


def read_manifest(folder: Path) -> dict:
    """The arguments that a miniature was made with; empty if the folder is none."""
    path = folder / MANIFEST
    return read_json(path, f'remove {folder}') if path.is_file() else {}


def is_outdated(folder: Path) -> bool:
    """Whether a folder holds a miniature that another version of this package drew, with other images."""
    return read_manifest(folder).get('format', FORMAT_VERSION) != FORMAT_VERSION
