"""What own data of all kinds share: their splits, validation images drawn at random, and temporary files."""

import atexit
import functools
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import InputError
from ...runtime.inputs import ARRAY_SUFFIX, IMAGE_SUFFIXES, is_hidden
from .arguments import DataArguments

# The words for each split in names of files and folders.
SPLITS = dict(train=('train', 'training', 'trainval'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
# Where there are no validation images, this part of the training images, drawn with this seed.
VAL_FRACTION = 0.1
VAL_SEED = 0


@dataclass
class OwnData:
    """The data of a folder as datasets of mmdet or mmseg.

    Attributes:
        classes: Names in the order of their indices.
        palette: R, G and B of each class in 0 to 255; None if the folder says nothing about them.
        datasets: Config of the dataset by split ('train', 'val', 'test'), without pipeline.
        notes: What was found and done, one line each, for the log.
        files: The images by split.
    """

    classes: tuple[str, ...]
    palette: list[tuple[int, int, int]] | None = None
    datasets: dict[str, dict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: dict[str, list[Path]] = field(default_factory=dict)


def sources_of(arguments: DataArguments, find: Callable[[Path], dict]) -> dict:
    """Where the data of each split are, in the order of `SPLITS`.

    Args:
        arguments: The arguments.
        find: Finds the splits in a folder: what there is of each, by the keys of `SPLITS`.
    """
    for option in ('data', 'train_data', 'val_data'):
        path = getattr(arguments, option)
        if path and not Path(path).exists():
            raise InputError(f'--{option.replace("_", "-")} not found: {path}')
    found = find(Path(arguments.data)) if arguments.data else {}
    for split, path in (('train', arguments.train_data), ('val', arguments.val_data)):
        if path:
            inside = find(Path(path))
            if split not in inside and len(inside) > 1:
                raise InputError(f'{path} has {" and ".join(inside)}, expected {split} or a single set of images')
            found[split] = inside[split] if split in inside else next(iter(inside.values()))
    return {split: found[split] for split in SPLITS if split in found}


def notes_of_sources(sources: dict) -> list[str]:
    """What is to be said of the sources: whether training and validation images are the same."""
    train, val = (
        [path.resolve() for path in (place if isinstance(place, tuple) else (place,))]
        for place in (sources.get('train', ()), sources.get('val', ()))
    )
    if not train or train != val:
        return []
    return [f'validated on the images that are trained on ({val[0]}): the metrics say little of others']


def draw_val(names: list[str], source: Path) -> set[str]:
    """Draw `VAL_FRACTION` of images for validation, at least one: the same ones of the same names in every run."""
    if len(names) < 2:
        raise InputError(
            f'{source} has {len(names)} image: expected two at least, one to train on and one to validate'
        )
    return set(random.Random(VAL_SEED).sample(sorted(names), max(1, round(VAL_FRACTION * len(names)))))


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """The files of some types below a folder, seen from there, without those that are hidden."""
    paths = (path.relative_to(folder) for path in folder.rglob('*') if path.suffix.lower() in suffixes)
    names = sorted(path.as_posix() for path in paths if not is_hidden(path))
    broken = next((name for name in names if '\n' in name), None)
    if broken is not None:
        raise InputError(f'the name of {folder / broken} has a line break: rename the file')
    return names


def images_below(folder: Path) -> list[str]:
    """The images below a folder, seen from there; arrays only if there is nothing else, as they may be features."""
    return files_below(folder, IMAGE_SUFFIXES) or files_below(folder, (ARRAY_SUFFIX,))


@functools.cache
def _temporary_folder() -> Path:
    """A folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix='bioattn_mm_'))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def temporary_file(name: str) -> Path:
    """Where to write a temporary file, in a folder of its own."""
    return Path(tempfile.mkdtemp(dir=_temporary_folder())) / name


def is_temporary(path: Path) -> bool:
    """Whether `temporary_file` gave a path."""
    return path.is_relative_to(_temporary_folder())


def split_of(path: Path) -> str:
    """The split that a file name says, else the folder nearest to it, else ''."""
    return next(filter(None, map(split_of_name, (path.stem, *reversed(path.parts[:-1])))), '')


def split_of_name(name: str) -> str:
    """The split that a name says: 'train' of 'train', 'Training', 'train2017', 'TrainImages' and 'cat_train'.

    This is the one place that says what a split is called, for files and folders of all formats.

    Returns:
        A key of `SPLITS`; '' if the name says none.
    """
    words = _words(name)
    return next((split for split, names in SPLITS.items() if not words.isdisjoint(names)), '')


def by_split(names: Iterable[str], where: Path) -> dict[str, str]:
    """Of some names the one of each split.

    A name that is nothing but a split's, in capitals or with a number, goes before one that has other words, too:
    Pascal VOC has train.txt beside cat_train.txt.

    Args:
        names: Names of folders, or of files without suffix, which are all in one place.
        where: This place, for the message.

    Returns:
        The name by split, in the order of `SPLITS`.

    Raises:
        InputError: Two names could be of the same split.
    """
    found: dict[str, str] = {}
    names = sorted(names)
    for split, words in SPLITS.items():
        ranks = {name: _rank(name, words) for name in names if split_of_name(name) == split}
        best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
        if len(best) > 1:
            raise InputError(
                f'{where} has {" and ".join(best[:3])}, each of which could be {split}: name one with --train-data '
                'or --val-data'
            )
        found.update((split, name) for name in best)
    return found


def _rank(name: str, words: Sequence[str]) -> tuple:
    """How well a name says a split: least for one of its words, then with a number, then with other words."""
    is_word = name in words
    return (
        not is_word,
        words.index(name) if is_word else 0,
        not _words(name) <= set(words),
        'trainval' in _words(name),
    )


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, without those that are hidden."""
    found = (path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    return sorted(name for name in found if not is_hidden(Path(name)))


def left_over(folder: Path, used: Iterable[Path]) -> list[str]:
    """What is said of the folders with images in a folder that are of no split."""
    used = set(used)
    return [
        f'not used: the images of {folder / name}, which are those of no split (train, val or test)'
        for name in subfolders(folder)
        if folder / name not in used and images_below(folder / name)
    ]


def _words(name: str) -> set[str]:
    """The words of a name in small letters, as of `TrainImages_2017`."""
    return set(re.findall('[a-z]+', re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).lower()))
